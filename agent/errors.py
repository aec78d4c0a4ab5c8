"""Errors for the person at the terminal: each one ends the command with an exit code and one thing to do next.

What a *candidate* did wrong is not here: that is evidence in a verdict and feedback in the next prompt. These classes
are for what stops the command: a wrong flag, a missing key, a machine that cannot do it. Libraries have errors of their own,
known without the tool: `coda.errors`, `coda.bench.timing.GpuBusy` (the GPU is being measured on by another process of ours: in a
gate it becomes INFRA_ERROR) and `authored_kernels.UnknownKernel` (no kept kernel of that id; `UnknownSubject` is what the tool
says, which also looks among tasks, examples and runs). The command line prints `error: <what>` and `hint: <hint>`, puts `code`
into `--json`, and exits with `exit_code` (2 usage, 4 refused by a gate, 5 environment, 6 language model).

    AgentError
    ├── UsageError                  2  the command was asked for something it cannot mean
    │   ├── SettingsInvalid         2  unknown key or bad value in a flag, a variable or a configuration file
    │   ├── UnknownProvider         2  --llm names no provider
    │   ├── ProviderMisused         2  --llm names one, but its argument makes no sense
    │   ├── PriceUnknown            2  --max-cost with a model whose price is not known
    │   ├── UnknownTask             2  no task of that name; near ones are listed
    │   ├── InvalidTask             2  a task file that cannot be used
    │   ├── UnknownRun              2  no run folder of that name
    │   ├── RunMismatch             2  a run cannot be resumed as another task
    │   ├── CannotImprove           2  a kept kernel that a run of this task cannot start from
    │   ├── CampaignConflict        2  a record of an authoring run that its campaign cannot take
    │   ├── RunUnfinished           2  a run that has not ended, where its outcome is asked for
    │   ├── UnknownSubject          2  no run, kernel, task or example of that name
    │   └── NotConfirmed            2  a question was not answered with yes
    ├── RunLocked                   5  another process works on this run
    ├── RunDamaged                  5  a run folder that cannot be read
    ├── TaskRefused                 4  the judge found the task itself at fault
    ├── JudgeUnavailable            5  the judge could not do its work on this machine
    ├── BenchUnavailable            5  nothing can be measured on this machine
    ├── PlotsUnavailable            5  pictures need a package that is not installed
    ├── CampaignDamaged             5  a committed record of an authoring run that cannot be read
    ├── FolderUnusable              5  a folder that results go to cannot be written to
    ├── NotKept                     5  a kernel passed and its folder could not be written
    ├── KernelDamaged               5  a kept kernel whose files cannot be read
    ├── PromotionRefused            4  a kernel does not have what a promotion needs
    └── LLMError                    6  no usable answer could be had from the language model
        ├── MissingKey              6  no API key
        ├── LLMRefusedCredentials   6  the key was not accepted, or may not use this model
        ├── LLMPaymentRequired      6  the account has no credit
        ├── LLMBadRequest           6  the request itself was refused; sending it again cannot help
        ├── LLMUnavailable          6  network, rate limit or outage, after the bounded retries
        ├── RecordingMissing        6  nothing recorded to replay
        ├── RecordingInvalid        6  a recording that cannot be read
        ├── RecordingExhausted      6  the run asked for more replies than were recorded
        ├── ReplyTimeout            6  nobody wrote the reply file in time
        ├── ReplyMalformed          6  a reply file that cannot be used
        └── ScriptExhausted         6  a scripted model ran out of replies
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class AgentError(Exception):
    """Base of every error that stops a command."""

    code: ClassVar[str] = "agent-error"
    exit_code: ClassVar[int] = 5

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\nhint: {self.hint}" if self.hint else self.what


# ---- usage and settings ----------------------------------------------------------------------------------------------


class UsageError(AgentError):
    """The command line asks for something that has no meaning."""

    code = "usage"
    exit_code = 2


class SettingsInvalid(UsageError):
    """A key nobody knows, or a value that does not fit, in a flag, a variable or a configuration file."""

    code = "settings-invalid"


class UnknownProvider(UsageError):
    """`--llm` names no provider."""

    code = "unknown-provider"


class ProviderMisused(UsageError):
    """`--llm` names a provider, but its argument is missing, unwanted or unusable."""

    code = "provider-misused"


class PriceUnknown(UsageError):
    """A spending limit was given for a model whose price is not in the table, so it could not be enforced."""

    code = "price-unknown"


# ---- language model --------------------------------------------------------------------------------------------------


class LLMError(AgentError):
    """No usable answer could be had from the language model. Never counted against a candidate."""

    code = "llm"
    exit_code = 6

    def __init__(
        self, what: str, *, hint: str = "", request_id: str | None = None, spent: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(what, hint=hint)
        self.request_id = request_id
        """The provider's id of the failed request, for its support."""
        self.spent = dict(spent or {})
        """Tokens already paid for by attempts that failed: the fields of `agent.llm.protocol.Usage`."""


class MissingKey(LLMError):
    """No API key is set."""

    code = "missing-key"


class LLMRefusedCredentials(LLMError):
    """The key was refused, or may not use this model."""

    code = "llm-credentials"


class LLMPaymentRequired(LLMError):
    """The account behind the key cannot pay."""

    code = "llm-payment"


class LLMBadRequest(LLMError):
    """The provider refused the request itself; the same request would be refused again."""

    code = "llm-bad-request"


class LLMUnavailable(LLMError):
    """Infrastructure: network, rate limit, overload or outage, after the bounded retries."""

    code = "llm-unavailable"


class RecordingMissing(LLMError):
    """There is no such recording, or none for this task."""

    code = "recording-missing"


class RecordingInvalid(LLMError):
    """A recording that cannot be read."""

    code = "recording-invalid"


class RecordingExhausted(LLMError):
    """The run asked for a round that was not recorded."""

    code = "recording-exhausted"


class ReplyTimeout(LLMError):
    """The reply file did not appear before the deadline."""

    code = "reply-timeout"


class ReplyMalformed(LLMError):
    """A reply file that cannot be used: not UTF-8, too large, or with unknown keys."""

    code = "reply-malformed"


class ScriptExhausted(LLMError):
    """A scripted model was asked for more replies than its script holds."""

    code = "script-exhausted"


# ---- tasks -----------------------------------------------------------------------------------------------------------


class UnknownTask(UsageError):
    """No task of the bank has that id, title or alias."""

    code = "unknown-task"

    def __init__(self, text: str, *, near: tuple[str, ...] = ()) -> None:
        self.near = near
        close = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        super().__init__(f"no task is called {text!r}", hint=f"{close}`coda-agent list tasks` shows them all")


class InvalidTask(UsageError):
    """A task file whose card or shapes cannot be used."""

    code = "invalid-task"


# ---- runs ------------------------------------------------------------------------------------------------------------


class UnknownRun(UsageError):
    """No run folder of that name."""

    code = "unknown-run"


class RunMismatch(UsageError):
    """A run cannot be resumed as something else: another task, or a task that has changed since."""

    code = "run-mismatch"


class CannotImprove(UsageError):
    """A kept kernel that a run of this task cannot start from."""

    code = "cannot-improve"


class RunLocked(AgentError):
    """Another process works on this run."""

    code = "run-locked"


class RunDamaged(AgentError):
    """A run folder that cannot be read."""

    code = "run-damaged"


class CampaignConflict(UsageError):
    """A campaign has one run of a task, under a name that is a folder's."""

    code = "campaign-conflict"


class RunUnfinished(UsageError):
    """A run without a last word has no outcome to publish."""

    code = "run-unfinished"


class CampaignDamaged(AgentError):
    """A committed record of an authoring run that cannot be read."""

    code = "campaign-damaged"


class FolderUnusable(AgentError):
    """A place that results go to cannot be written to, or holds something else. Said before anything is spent."""

    code = "folder-unusable"


class NotKept(AgentError):
    """A kernel passed and could not be written where kernels are kept. The run still holds it."""

    code = "not-kept"


class TaskRefused(AgentError):
    """The judge found the task itself at fault, not a candidate."""

    code = "task-refused"
    exit_code = 4


class JudgeUnavailable(AgentError):
    """The judge could not do its work on this machine; never counted against a candidate."""

    code = "judge-unavailable"


class BenchUnavailable(AgentError):
    """Nothing can be measured here: no GPU, one that is in use, or one that is unusable."""

    code = "bench-unavailable"


class PlotsUnavailable(AgentError):
    """Pictures need matplotlib, which is not installed."""

    code = "plots-unavailable"


# ---- kernels that are reviewed, promoted, compared -------------------------------------------------------------------


class UnknownSubject(UsageError):
    """Nothing of that name: no run, no kept kernel, no task, no example."""

    code = "unknown-subject"

    def __init__(self, text: str, *, kinds: str, near: tuple[str, ...] = (), hint: str = "") -> None:
        self.near = near
        close = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        super().__init__(f"no {kinds} is called {text!r}", hint=(close + hint).strip())


class NotConfirmed(UsageError):
    """A question was not answered with yes."""

    code = "not-confirmed"


class KernelDamaged(AgentError):
    """A kept kernel whose files cannot be read."""

    code = "kernel-damaged"


class PromotionRefused(AgentError):
    """A kernel does not have what a promotion needs."""

    code = "promotion-refused"
    exit_code = 4

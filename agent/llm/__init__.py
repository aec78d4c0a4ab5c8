"""Asking a language model for a kernel: one request, one reply, whoever answers.

Modules, in the order in which they build on each other:

- `protocol`: `Request`, `Reply`, `Submission`, `Usage` and the `LLM` protocol. What the loop and the store speak.
- `extract`: finds the kernel in a reply that is plain text, and says which of several things went wrong when there is
  none.
- `prices`: what tokens cost; `prices.toml` beside it is the dated table.
- `anthropic_stream`: the events of a streamed answer as one `Reply`.
- `anthropic`: the Anthropic API: streaming, the strict `submit_kernel` tool, prompt cache, failures as typed errors.
- `replay`: answers from a recording; `agent/recordings/` holds the bundled ones.
- `folder`: writes each request to a file and waits for somebody to write the reply file.
- `scripted`: a queue of canned replies and the history of what was asked. For tests and demonstrations, and public.
- `select`: turns the `--llm` argument into one of the above.

No provider judges anything: a reply holds at most a submission (source, rationale, schedule), and `agent.verify`
decides. The Anthropic SDK is imported by `anthropic` alone, at the first request.
"""

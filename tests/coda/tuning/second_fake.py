"""A second backend beside the fake one."""

from __future__ import annotations

from fake_backend import Fake


class Second(Fake):
    name = "second"


BACKEND = Second()

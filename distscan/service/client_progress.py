"""The progress of a job, as a bar in a terminal or in a notebook."""

from typing import Any


class Bar:
    """One bar, which begins anew with each phase; a context that closes it."""

    def __init__(self, number: int) -> None:
        """Show an empty bar for job ``number``; raise ImportError if tqdm is not installed."""
        try:
            from tqdm.auto import tqdm  # noqa: PLC0415 - takes long, and few ask for a bar
        except ImportError as error:
            raise ImportError(
                f"{error}; install it: in a checkout, pip install '.[service]'"
            ) from error
        self._name, self._phase = f"job {number}", ""
        self._bar = tqdm(desc=self._name, unit="B", unit_scale=True)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.close()

    def show(self, record: dict[str, Any]) -> None:
        """Show what a service has said of the job: its phase, or its state if it does not run."""
        found = record["progress"] or {"phase": record["state"], "done": 0, "size": 0}
        new, self._phase = found["phase"] != self._phase, found["phase"]
        self._bar.set_description_str(f"{self._name}: {self._phase}", refresh=False)
        if new and found["size"]:
            self._bar.reset(total=found["size"])
        if found["size"]:
            self._bar.n = found["done"]
        elif self._phase == "done":
            self._bar.n = self._bar.total or 0
        self._bar.refresh()

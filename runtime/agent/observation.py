"""What the agent is shown after a command. Version 1.

    exit code: 1
    note: the shell was restarted; its directory, variables and background jobs are gone
    note: 2,048 of 1,048,576 bytes of output are shown, head and tail
    output:
    ...

Invariants:
- The first line always tells the end: `exit code: N`, or `exit code: none (timed out after 30 s and was stopped)`.
- A restart and missing output are always told, with true totals: those of the command, not of what was left after a
  cut.
- Output beyond the limit keeps head and tail, half each, cut at line ends where one is near; a marker line stands
  between.
"""

from __future__ import annotations

from collections.abc import Callable

from sandbox.spec import CommandResult

_MARKER = "[... {} bytes left out here ...]"


def observe(result: CommandResult, *, max_tokens: int, count_tokens: Callable[[str], int], timeout_s: float) -> str:
    """The observation for `result`, its output within `max_tokens` as `count_tokens` counts them."""
    shown, kept_bytes = fit(result.output, max_tokens, count_tokens)
    lines = [_ending(result, timeout_s)]
    if result.shell_restarted:
        lines.append("note: the shell was restarted; its directory, variables and background jobs are gone")
    total = max(result.total_bytes, _size(result.output))
    kept = min(kept_bytes, total - result.dropped_bytes)
    if kept < total:
        lines.append(f"note: {kept:,} of {total:,} bytes of output are shown, head and tail")
    lines.append(f"output:\n{shown}" if shown.strip() else "output: (none)")
    return "\n".join(lines)


def _ending(result: CommandResult, timeout_s: float) -> str:
    if result.timed_out:
        return f"exit code: none (timed out after {timeout_s:g} s and was stopped)"
    return f"exit code: {'none (it did not end by itself)' if result.exit_code is None else result.exit_code}"


def fit(output: str, max_tokens: int, count_tokens: Callable[[str], int]) -> tuple[str, int]:
    """`output`, or head and tail of it within the limit, and how many of its bytes are shown."""
    tokens = count_tokens(output)
    if tokens <= max_tokens:
        return output, _size(output)
    half = len(output) * max_tokens // tokens // 2
    # Where the ends are denser in tokens than the average, the first guess is too long.
    while count_tokens(output[:half] + output[len(output) - half :]) > max_tokens and half > 0:
        half = half * 3 // 4
    head, tail = _head(output[:half]), _tail(output[len(output) - half :])
    kept = _size(head) + _size(tail)
    return f"{head}\n{_MARKER.format(f'{_size(output) - kept:,}')}\n{tail}", kept


def _head(text: str) -> str:
    """Up to the last line end, when that is not far."""
    end = text.rfind("\n")
    return text[:end] if end > len(text) * 3 // 4 else text


def _tail(text: str) -> str:
    start = text.find("\n") + 1
    return text[start:] if 0 < start < len(text) // 4 else text


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))

"""The spawner: a small process that makes the sandboxes of one engine, and dies with it.

Everything in this directory runs under a bare interpreter (`-I -S -E`), as root, with no site packages.

Invariants:
- Standard library only, and only relative imports: the package is loaded from its own directory, without its parents.
- Single-threaded. The parent never does slow work: each piece runs in a fork, which reports over a pipe.
- After start nothing is imported any more, so that no code is ever loaded from inside a sandbox.
- Forks are its business, and cost what it has in memory: large modules, as pathlib, are not loaded.
- Nothing on the host follows a path that a sandbox wrote: such work happens inside the sandbox's own mount namespace.
"""

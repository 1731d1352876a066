"""Small tasks of each format, of our own making, that run in the base environment: count rows, write the number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sandbox.base import BASE_DOCKERFILE

COPY = "COPY --chown=agent:agent rows.txt /home/agent/rows.txt\nUSER agent\nWORKDIR /home/agent\n"
DOCKERFILE = BASE_DOCKERFILE + COPY
ROWS = "a row\n" * 417
INSTRUCTION = (
    "Count the lines of /home/agent/rows.txt.\nWrite the number, and nothing else, into count.txt beside it.\n"
)
TRUTH = "There are 417 lines; the auditor's code word is marmalade-7."
FINAL_TESTS = (
    "from pathlib import Path\n\n\n"
    "def test_the_count_is_right() -> None:\n"
    "    path = Path('/home/agent/count.txt')\n"
    "    assert path.is_file(), 'count.txt is missing'\n"
    "    assert path.read_text().strip() == '417'\n"
)
INITIAL_TESTS = (
    "from pathlib import Path\n\n\ndef test_the_rows_are_there() -> None:\n"
    "    assert Path('/home/agent/rows.txt').is_file()\n"
)
SOLUTION = "#!/bin/bash\nwc -l < /home/agent/rows.txt > /home/agent/count.txt\n"

TASK_YAML = """\
# yaml-language-server: a comment that stays
instruction: |-
  Count the lines of /home/agent/rows.txt.
  Write the number, and nothing else, into count.txt beside it.
author_name: A. Person
author_email: null
difficulty: easy
category: file-operations
tags:
  - counting
parser_name: pytest
max_agent_timeout_sec: 60.0
max_test_timeout_sec: 45
made_on: 2026-03-01
expert_time_estimate_min: 1
"""
COMPOSE = """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
"""
RUN_TESTS = '#!/bin/bash\n\npython3 -m pytest -p no:cacheprovider "$TEST_DIR/test_outputs.py" -rA\n'
TERMINAL_BENCH = {
    "task.yaml": TASK_YAML,
    "docker-compose.yaml": COMPOSE,
    "Dockerfile": DOCKERFILE,
    "rows.txt": ROWS,
    "run-tests.sh": RUN_TESTS,
    "solution.sh": SOLUTION,
    "tests/test_outputs.py": FINAL_TESTS,
}
SOLUTION_YAML = """\
- command: cd /home/agent
  min_timeout_sec: 1.0
- command: wc -l < rows.txt > count.txt
  min_timeout_sec: 1.0
  block: true
"""

BASE_RUN = BASE_DOCKERFILE.split("RUN ", 1)[1].strip()
DEFINITION = f"""\
Bootstrap: docker
From: debian:bookworm-slim

%files
    rows.txt /home/agent/rows.txt

%post
    {BASE_RUN}
    # the agent owns its home
    chown -R agent:agent /home/agent

%environment
    export LC_ALL=C.UTF-8
"""
ENDLESS_TERMINALS = {
    "task.json": json.dumps({"description": INSTRUCTION, "truth": TRUTH, "name": "task_000000_1a2b3c4d", "extra": [1]}),
    "container.def": DEFINITION,
    "rows.txt": ROWS,
    "test_initial_state.py": INITIAL_TESTS,
    "test_final_state.py": FINAL_TESTS,
    "solution/solve.sh": SOLUTION,
    "solutions/summary.json": '{"num_runs": 16, "num_success": 12}',
}

TASK_TOML = """\
version = "1.0"
source = "elsewhere"
artifacts = ["/home/agent/count.txt"]

[metadata]
author_name = "A. Person"
made = 2026-03-01
nested = {deep = [1, 2.5, "three"]}

[agent]
timeout_sec = 60.0
network_mode = "no-network"

[verifier]
timeout_sec = 45.0
env = {LIMIT = "417"}

[environment]
build_timeout_sec = 600.0
memory = "2G"
allow_internet = false
gpus = 0
env = {GREETING = "say \\"hi\\" for $5"}

[solution]
env = {TARGET = "/home/agent/count.txt"}
"""
TEST_SH = """\
#!/bin/bash
[ "$GREETING" = 'say "hi" for $5' ] && [ "$(cat /home/agent/count.txt)" = "$LIMIT" ] && reward=1 || reward=0
echo "{\\"reward\\": $reward}" > /logs/verifier/reward.json
"""
HARBOR = {
    "task.toml": TASK_TOML,
    "instruction.md": INSTRUCTION,
    "environment/Dockerfile": DOCKERFILE,
    "environment/rows.txt": ROWS,
    "solution/solve.sh": '#!/bin/bash\nwc -l < /home/agent/rows.txt > "$TARGET"\n',
    "tests/test.sh": TEST_SH,
    "notes/why.md": "Because.\n",
}


def write_files(directory: Path, files: Mapping[str, str]) -> Path:
    """The sample as a directory; scripts are executable."""
    for path, text in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o755 if path.endswith(".sh") else 0o644)
    return directory


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }

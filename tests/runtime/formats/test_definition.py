"""Apptainer definitions become Dockerfiles that build the same, or are refused with the reason; and back."""

from __future__ import annotations

import json

import pytest

from runtime.formats.definition import DefinitionUnsupported, copied, from_dockerfile, to_dockerfile
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import BuildContext, File

DEFINITION = """\
# prepared by hand
Bootstrap: localimage
From: ../images/ubuntu_22.04.sif

%labels
    Author somebody: else

%files
    data/rows.csv /home/user/in/rows.csv
    tree /opt/tree
    tree /srv/

%environment
    # for everyone
    export LANG=C.UTF-8
    PATH="/opt/bin:$PATH"

%post
    apt-get update && apt-get install -y python3-pytest
    useradd -m -s /bin/bash user
    cat > /home/user/note.txt <<'EOF'
    100 % "sure"
    EOF

%runscript
    exec /bin/bash
"""
FILES = ["data/rows.csv", "tree/a.txt", "tree/b/c.txt", "other.txt"]


def test_a_definition_becomes_a_dockerfile_step_by_step() -> None:
    script = (
        "apt-get update && apt-get install -y python3-pytest\nuseradd -m -s /bin/bash user\n"
        "cat > /home/user/note.txt <<'EOF'\n100 % \"sure\"\nEOF"
    )
    assert to_dockerfile(DEFINITION, FILES).splitlines() == [
        "FROM ubuntu:22.04",
        'COPY ["data/rows.csv", "/home/user/in/rows.csv"]',
        'COPY ["tree/a.txt", "/opt/tree/a.txt"]',
        'COPY ["tree/b/c.txt", "/opt/tree/b/c.txt"]',
        'COPY ["tree/a.txt", "/srv/tree/a.txt"]',
        'COPY ["tree/b/c.txt", "/srv/tree/b/c.txt"]',
        f"RUN {json.dumps(['/bin/sh', '-ec', script])}",
        "ENV LANG=C.UTF-8",
        'ENV PATH="/opt/bin:$PATH"',
        "RUN chmod -R a+rwX /home/user",
        "WORKDIR /home/user",
    ]
    assert copied(DEFINITION, FILES) == {"data/rows.csv", "tree/a.txt", "tree/b/c.txt"}


def test_what_begins_with_the_base_lines_starts_from_the_base_environment() -> None:
    base_from, base_run = BASE_DOCKERFILE.splitlines()
    text = f"Bootstrap: docker\nFrom: {base_from[5:]}\n%post\n  {base_run[4:]}\n  touch /x\n"
    assert to_dockerfile(text, []) == f'{BASE_DOCKERFILE}RUN ["/bin/sh", "-ec", "touch /x"]\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Bootstrap: library\nFrom: debian\n", "it starts from library debian"),
        ("Bootstrap: localimage\nFrom: ./rootfs/\n", "it starts from localimage ./rootfs/"),
        ("", "it starts from nothing"),
        ("Bootstrap: docker\nFrom: a\n%post\ntrue\nBootstrap: docker\nFrom: b\n", "it has several stages"),
        ("Bootstrap: docker\nFrom: a\n%setup\ntouch /x\n", "its %setup runs commands on the host"),
        ("Bootstrap: docker\nFrom: a\n%appinstall x\n", "its section %appinstall is not known"),
        ("Bootstrap: docker\nFrom: a\n%post -c /bin/bash\ntrue\n", "its %post has arguments (-c /bin/bash)"),
        ("Bootstrap: docker\nFrom: a\n%files from build\n/x /y\n", "its %files has arguments (from build)"),
        ("Bootstrap: docker\nFrom: a\n%files\n/etc/passwd /x\n", "its %files copies /etc/passwd from the host"),
        ("Bootstrap: docker\nFrom: a\n%files\n../up /x\n", "its %files copies ../up from the host"),
        ("Bootstrap: docker\nFrom: a\n%files\ngone.txt /x\n", "its %files copies gone.txt, which is not there"),
        ("Bootstrap: docker\nFrom: a\n%files\n'rows.csv /x\n", "its %files cannot be read ('rows.csv /x: No closing"),
        ("Bootstrap: docker\nFrom: a\n%environment\nexport A=$(date)\n", "its %environment is a program"),
    ],
)
def test_what_would_build_something_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DefinitionUnsupported) as refused:
        to_dockerfile(text, FILES)
    assert reason in str(refused.value)


def test_a_dockerfile_becomes_a_definition_that_owns_what_it_made() -> None:
    dockerfile = (
        'FROM debian:12\nENV GREETING="it\'s"\nCOPY --chown=agent:agent files/ /home/agent/\nUSER agent\n'
        'WORKDIR /home/agent\nRUN ["bash", "-c", "echo one\\necho 50% > two"]\n'
    )
    context = BuildContext(dockerfile=dockerfile, files=(File(path="files/a/b.txt", data=b"b", mode=0o640),))
    assert from_dockerfile(context, folder="environment").splitlines() == [
        "Bootstrap: docker",
        "From: debian:12",
        "",
        "%files",
        "    environment/files/a/b.txt /.context/files/a/b.txt",
        "",
        "%post",
        "    [ -d /home ] || { mkdir /home && chown agent:agent /home; }",
        "    [ -d /home/agent ] || { mkdir /home/agent && chown agent:agent /home/agent; }",
        "    [ -d /home/agent/a ] || { mkdir /home/agent/a && chown agent:agent /home/agent/a; }",
        "    cp /.context/files/a/b.txt /home/agent/a/b.txt && chmod 640 /home/agent/a/b.txt && "
        "chown agent:agent /home/agent/a/b.txt",
        "    mkdir -p /home/agent",
        "    cd /home/agent && runuser -u agent -- env 'GREETING=it'\"'\"'s' bash -c "
        "\"$(printf %b 'echo one\\necho 50% > two')\"",
        "    rm -rf /.context",
        "",
        "%environment",
        "    export GREETING='it'\"'\"'s'",
    ]


@pytest.mark.parametrize(
    "dockerfile", ["FROM a AS b\nFROM c\n", "FROM a\nCOPY gone.txt /x\n", "FROM a\nADD https://x.invalid/y /z\n"]
)
def test_a_dockerfile_that_cannot_be_told_is_refused(dockerfile: str) -> None:
    with pytest.raises(DefinitionUnsupported):
        from_dockerfile(BuildContext(dockerfile=dockerfile), folder="environment")

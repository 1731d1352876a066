"""A background service: start it, find its port, ask it something, stop it in an orderly way, keep its exit status.

Everything that counts is left in files by the service itself or by whoever watched it; codes and port are computed by the
running service, so they are in no file before.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import absent, check, lines_are, present
from generators.procedural.family import Piece, Place
from generators.procedural.reports import misplaced
from generators.procedural.steps import Step, assemble, slip, text_file

name = "process-and-port"
category = "process management"
tools: tuple[str, ...] = ("bash", "nohup", "ss", "curl", "kill")
depths = range(1, 6)

_SOURCE = '''\
"""{title}: answers HTTP on a port of 127.0.0.1 and stops on SIGTERM."""
import http.server
import json
import os
import signal
import sys
import threading
import zlib

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "settings.json")) as file:
    settings = json.load(file)


def code(text):
    return format(zlib.crc32((settings["seed"] + text).encode()), "08x")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (self.path.strip("/") + " " + code(self.path) + "\\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *parts):
        pass


def leave(name, line):
    path = os.path.join(here, name)
    with open(path + ".part", "w") as file:
        file.write(line + "\\n")
    os.replace(path + ".part", path)


port = settings["lowest_port"] + 1 + zlib.crc32(settings["seed"].encode()) % settings["spread"]
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
{announce}leave("{ready}", "ready " + code("ready"))
server.serve_forever(0.05)
server.server_close()
leave("{stopped}", "stopped " + code("stopped"))
sys.exit(settings["status"])
'''


@dataclass(frozen=True, kw_only=True)
class Service:
    """What runs, and what it will do."""

    at: str
    script: str
    log: str
    seed: str
    lowest: int
    spread: int
    status: int
    announces: bool
    """Whether it prints its port when it starts; else only the system knows it."""
    ready: str
    stopped: str
    path: str
    """What to ask for over HTTP."""

    def code(self, text: str) -> str:
        return format(zlib.crc32((self.seed + text).encode()), "08x")

    @property
    def port(self) -> int:
        return self.lowest + 1 + zlib.crc32(self.seed.encode()) % self.spread

    def source(self) -> str:
        announce = 'print("listening on port", port, flush=True)\n' if self.announces else ""
        return _SOURCE.format(
            title=self.script.removesuffix(".py"), announce=announce, ready=self.ready, stopped=self.stopped
        )

    def settings(self) -> str:
        return f'{{"seed": "{self.seed}", "lowest_port": {self.lowest}, "spread": {self.spread}, "status": {self.status}}}\n'


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    service = _service(rng, place)
    steps = [step(service) for step in (_start, _port, _ask, _stop, _status)[:depth]]
    return assemble(
        family=name,
        title=f"Run {service.script.removesuffix('.py')}",
        place=place,
        openings=(
            f"{place.directory}/{service.script} is a small HTTP service (run it with python3; it listens on 127.0.0.1 and has its settings beside it).",
            f"There is a service in {place.directory}/{service.script}, a Python 3 program that answers HTTP on 127.0.0.1. Don't change it or its settings.",
            f"I need a session with our little HTTP service {place.directory}/{service.script}; python3 runs it, on 127.0.0.1.",
        ),
        steps=steps,
        files=(
            text_file(place, service.script, service.source()),
            text_file(place, "settings.json", service.settings()),
        ),
        initial_checks=(
            present(place.directory, (service.script, "settings.json")),
            *(absent(f"{place.directory}/{file}") for file in (service.log, service.ready, service.stopped)),
        ),
    )


def _service(rng: random.Random, place: Place) -> Service:
    stem = rng.choice(words.SERVICES)
    return Service(
        at=place.directory,
        script=f"{stem}.py",
        log=f"{stem}.log",
        seed=words.token(rng, 12),
        lowest=rng.randrange(20000, 40000, 500),
        spread=rng.randint(200, 450),
        status=rng.randint(3, 90),
        announces=rng.random() < 0.5,
        ready=f"{rng.choice(words.STEMS)}.ready",
        stopped=f"{rng.choice(words.STEMS)}.stopped",
        path=f"/{rng.choice(words.TERMS)}/{rng.choice(words.PRODUCTS)}",
    )


def _start(service: Service) -> Step:
    ready, log = f"{service.at}/{service.ready}", f"{service.at}/{service.log}"
    wait = f"for _ in $(seq 600); do [ -s {service.ready} ] && break; sleep 0.05; done"
    return Step(
        says=(
            f"Start it in the background with its output going to {log}, and wait until it is up: it then writes {ready} by itself.",
            f"Get it running in the background, log in {log}, and make sure that it is really up, which is when it has written {ready} on its own.",
            f"Start the service so that it keeps running in the background and logs to {log}. It is up once it has left {ready}, which only the service itself may write.",
        ),
        thought="Background with nohup, output to the log, then wait for the file that says it is ready.",
        command=f"{{ nohup python3 {service.script} > {service.log} 2>&1 & }} && {wait}",
        checks=(lines_are(ready, [f"ready {service.code('ready')}"]), check(log, "is_its_log", *_logged(service))),
        mistakes=(
            slip(
                "verification_failure",
                f"touch {service.ready} {service.log}",
                "With the ready file in place everybody sees that it is up.",
                f"rm -f {service.ready} {service.log}",
            ),
            slip(
                "command_error",
                f"{{ nohup bash {service.script} > {service.log} 2>&1 & }}; wait",
                "A script is started with bash.",
                f"rm -f {service.log}",
            ),
            slip(
                "requirement_violation",
                f"{{ python3 {service.script} > /dev/null 2>&1 & }} && {wait}",
                "Its output isn't needed, so it can go to /dev/null.",
                "kill %% && wait",
                f"rm -f {service.ready} {service.stopped}",
            ),
        ),
        truth=(service.code("ready"),),
    )


def _logged(service: Service) -> tuple[str, ...]:
    if service.announces:
        return (
            f"assert 'listening on port {service.port}' in read_lines(path), f'{{path}} is not the log of the service'",
        )
    return ("read_bytes(path)",)


def _port(service: Service) -> Step:
    target = f"{service.at}/port.txt"
    find = (
        f"sed -n 's/^listening on port //p' {service.log}"
        if service.announces
        else "ss -Hltnp | grep \"pid=$!,\" | grep -o '127.0.0.1:[0-9]*' | cut -d: -f2"
    )
    command = f"{find} > port.txt"
    where = "its log says which" if service.announces else "its log doesn't tell, the system does"
    return Step(
        says=(
            f"Write the port that it really listens on ({where}) to {target}, only the number.",
            f"Find out which port it has taken ({where}) and put the bare number into {target}.",
            f"Which port does it listen on? {where[0].upper()}{where[1:]}; the number alone goes to {target}.",
        ),
        thought="The settings only give a range; the running service shows the port.",
        command=command,
        checks=(lines_are(target, [str(service.port)]),),
        mistakes=(
            slip(
                "analysis_error",
                "grep -o '\"lowest_port\": [0-9]*' settings.json | cut -d' ' -f2 > port.txt",
                "The settings have the port.",
            ),
            slip(
                "hallucination",
                f"python3 {service.script} --show-port > port.txt 2> /dev/null",
                "The service can print its port.",
            ),
            misplaced(command, "port.txt"),
        ),
    )


def _ask(service: Service) -> Step:
    target = f"{service.at}/answer.txt"
    command = f"curl -s http://127.0.0.1:$(cat port.txt){service.path} > answer.txt"
    return Step(
        says=(
            f"Request {service.path} from it over HTTP and save the body of the answer to {target}.",
            f"Fetch the path {service.path} from the running service, keeping the body (no headers) in {target}.",
            f"Ask it for {service.path} and leave the body of what it answers in {target}, without headers.",
        ),
        thought="A plain GET with curl to the port just found.",
        command=command,
        checks=(lines_are(target, [f"{service.path.strip('/')} {service.code(service.path)}"]),),
        mistakes=(
            slip(
                "requirement_violation", command.replace("curl -s", "curl -si"), "The whole answer, with its headers."
            ),
            slip("command_error", f"curl -s http://127.0.0.1{service.path} > answer.txt", "HTTP has a standard port."),
            misplaced(command, "answer.txt"),
        ),
        truth=(service.code(service.path),),
    )


def _stop(service: Service) -> Step:
    stopped = f"{service.at}/{service.stopped}"
    return Step(
        says=(
            f"Stop it in an orderly way with SIGTERM and wait for its end; it then writes {stopped} itself.",
            f"Shut it down cleanly (it reacts to SIGTERM) and wait until it has ended, after which the service has written {stopped}.",
            f"End it properly, with SIGTERM, so that it gets to write {stopped} by itself, and wait until it is gone.",
        ),
        thought="SIGTERM to the job, then wait for it and keep its exit status.",
        command="kill -TERM %% && wait %%; status=$?",
        checks=(lines_are(stopped, [f"stopped {service.code('stopped')}"]),),
        mistakes=(
            slip(
                "requirement_violation",
                "kill -KILL %%; wait %%; status=$?",
                "Kill makes sure that it stops.",
                *_again(service),
            ),
            slip(
                "verification_failure",
                f"echo stopped > {service.stopped}; status=0",
                "The file says that it has stopped.",
                f"rm {service.stopped}",
            ),
        ),
        truth=(service.code("stopped"),),
    )


def _again(service: Service) -> tuple[str, ...]:
    return (f"rm {service.ready}", _start(service).command)


def _status(service: Service) -> Step:
    target = f"{service.at}/status.txt"
    command = 'echo "$status" > status.txt'
    return Step(
        says=(
            f"Write the exit status with which it ended to {target}, only the number.",
            f"Save its exit status, just the number, in {target}.",
            f"I also want to know its exit status: the number in {target}.",
        ),
        thought="The status that wait returned when it ended.",
        command=command,
        checks=(lines_are(target, [str(service.status)]),),
        mistakes=(
            slip("analysis_error", "echo 143 > status.txt", "A process that ends by SIGTERM has 128 + 15."),
            slip("command_error", 'echo "$?" > status.txt', "$? is the exit status."),
            misplaced(command, "status.txt"),
        ),
    )

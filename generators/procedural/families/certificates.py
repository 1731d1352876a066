"""Certificates and private keys of several hosts: names, dates, which key fits, a new signing request."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.checks import check
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, slip, text_file

name = "certificates"
category = "certificates and keys"
tools: tuple[str, ...] = ("bash", "date", "openssl", "sort")
depths = range(1, 6)

_AUTHORITY = (
    "mkdir .ca && cd .ca && touch index",
    "printf '%s\\n' '[ca]' 'default_ca = c' '[c]' 'database = index' 'new_certs_dir = .' 'serial = serial' 'default_md = sha256' "
    "'policy = p' 'copy_extensions = copy' 'unique_subject = no' '[p]' 'organizationName = supplied' 'commonName = supplied' "
    "'[req]' 'distinguished_name = d' '[d]' > c.cnf",
)


@dataclass(frozen=True)
class Certificate:
    """One certificate; `file` and `key` are stems of its file and of the key that fits."""

    file: str
    key: str
    host: str
    organisation: str
    names: list[str]
    start: datetime
    end: datetime
    serial: str

    def commands(self) -> tuple[str, ...]:
        """Make it with fixed dates, in the authority's directory."""
        subject = f"/O={self.organisation}/CN={self.host}"
        extension = "subjectAltName=" + ",".join(f"DNS:{name}" for name in self.names)
        form = "%Y%m%d%H%M%SZ"
        return (
            f"openssl req -new -config c.cnf -key ../keys/{self.key}.key -subj '{subject}' -addext {extension} -out r",
            f"echo {self.serial} > serial",
            f"openssl ca -batch -notext -selfsign -config c.cnf -keyfile ../keys/{self.key}.key -in r -startdate {self.start:{form}} "
            f"-enddate {self.end:{form}} -out ../certs/{self.file}.crt 2> log || {{ cat log; exit 1; }}",
        )


@dataclass(frozen=True)
class Scene:
    """Certificates sorted by file name."""

    at: str
    certificates: list[Certificate]


def _key(rng: random.Random) -> str:
    """A P-256 private key in PEM."""
    secret = rng.getrandbits(248).to_bytes(32, "big")
    der = b"\x30\x31\x02\x01\x01\x04\x20" + secret + b"\xa0\x0a\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07"
    body = base64.encodebytes(der).decode().replace("\n", "")
    return f"-----BEGIN EC PRIVATE KEY-----\n{body[:64]}\n{body[64:]}\n-----END EC PRIVATE KEY-----\n"


def _scene(rng: random.Random, place: Place) -> Scene:
    count = rng.randint(3, 4)
    files = sorted(words.distinct(rng, words.SERVICES, count))
    keys = words.distinct(rng, words.PROJECTS, count)
    while any(a == b for a, b in zip(keys, sorted(keys), strict=True)):
        rng.shuffle(keys)
    ends = [words.moment(rng) for _ in files]
    while ends == sorted(ends):
        rng.shuffle(ends)
    starts = [end - timedelta(days=rng.randint(200, 1200)) for end in ends]
    hosts = [f"{rng.choice(words.TERMS)}.{rng.choice(words.CITIES)}.example.org" for _ in files]
    return Scene(
        place.directory,
        [
            Certificate(
                file,
                key,
                host,
                f"{rng.choice(words.PROJECTS).title()} {rng.choice(('Works', 'Labs', 'Services'))}",
                [f"{term}.{host}" for term in words.distinct(rng, words.TERMS, rng.randint(3, 5))],
                start,
                end,
                f"{rng.randint(16, 127):02X}{words.token(rng, 6).upper()}",
            )
            for file, key, host, start, end in zip(files, keys, hosts, starts, ends, strict=True)
        ],
    )


def _loop(body: str) -> str:
    return f'for f in certs/*.crt; do n=$(basename "$f"); {body}; done'


_END = 'd=$(date -u -d "$(openssl x509 -noout -enddate -in "$f" | cut -d= -f2)" +%F)'


def _dates(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    rows = sorted((f"{c.end:%Y-%m-%d}", f"{c.file}.crt") for c in scene.certificates)
    listing = _loop(f'{_END}; echo "$d $n"')
    return answers.step(
        out,
        [f"{day} {file}" for day, file in rows],
        f"{listing} | sort",
        says=(
            f"Write `YYYY-MM-DD FILE` for each certificate in {scene.at}/certs to {out}: its last day of validity (UTC) and its file name without directory, earliest first, ties by name.",
            f"When does each certificate in {scene.at}/certs run out? `YYYY-MM-DD FILE` (UTC date, bare file name) in {out}, the one that ends first on top, ties by name.",
            f"I need a list of expiry dates of what's in {scene.at}/certs, lines `YYYY-MM-DD FILE` with the UTC date and the plain file name, soonest first (same day: by name), in {out}.",
        ),
        thought="openssl prints the end date, date turns it into a form that sorts.",
        slips=(
            (
                "analysis_error",
                f"{listing.replace('-enddate', '-startdate')} | sort",
                "The date in the certificate is what counts.",
            ),
            ("requirement_violation", f"{listing} | sort -k2", "By file name is the natural order."),
        ),
    )


def _expired(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    ends = sorted(c.end for c in scene.certificates)
    day = f"{ends[len(ends) // 2] - timedelta(days=1):%Y-%m-%d}"
    found = [f"{c.file}.crt" for c in scene.certificates if f"{c.end:%Y-%m-%d}" < day]
    body = f'{_END}; if [[ $d < {day} ]]; then echo "$n"; fi'
    return answers.step(
        out,
        found,
        _loop(body),
        says=(
            f"Write the file names (without directory) of the certificates in {scene.at}/certs that ended before {day} (UTC) to {out}, one per line, sorted.",
            f"Which certificates in {scene.at}/certs were no longer valid on {day}, because their last day (UTC) lies before it? Bare file names, sorted, one a line, in {out}.",
            f"Find what in {scene.at}/certs had run out before {day} (UTC dates): plain file names in alphabetical order, one a line, in {out}.",
        ),
        thought="ISO dates compare as text, so the shell can tell which ended before that day.",
        slips=(
            ("command_error", _loop(body.replace(" < ", " > ")), "Ended before means that the day is larger."),
            (
                "analysis_error",
                _loop('openssl x509 -noout -checkend 0 -in "$f" > /dev/null || echo "$n"'),
                "-checkend tells what has run out.",
            ),
            ("requirement_violation", _loop(body.replace('"$n"', '"$f"')), "The path says where it is."),
        ),
    )


def _pairs(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    digest = "-in $f | sha256sum | cut -c 1-64) $(basename $f)"
    certificates = f'<(for f in certs/*; do echo "$(openssl x509 -noout -pubkey {digest}"; done | sort)'
    keys = f'<(for f in keys/*; do echo "$(openssl pkey -pubout {digest}"; done | sort)'
    return answers.step(
        out,
        [f"{c.file}.crt {c.key}.key" for c in scene.certificates],
        f"join -o 1.2,2.2 {certificates} {keys} | sort",
        says=(
            f"Write `CERTIFICATE KEY` for each certificate in {scene.at}/certs to {out}: its file name and that of the private key in {scene.at}/keys that belongs to it, both without directory, sorted by certificate.",
            f"The keys in {scene.at}/keys have misleading names. Find out which fits which certificate in {scene.at}/certs and write `CERTIFICATE KEY` (bare file names, by certificate) to {out}.",
            f"Which key from {scene.at}/keys belongs to which certificate in {scene.at}/certs? Lines `CERTIFICATE KEY` with the plain file names, ordered by certificate, in {out}.",
        ),
        thought="Key and certificate belong together if their public keys are the same.",
        slips=(
            (
                "analysis_error",
                "paste -d ' ' <(ls certs) <(ls keys)",
                "In both folders the files come in the same order.",
            ),
            (
                "command_error",
                f"join -v 1 -o 1.2,2.2 {certificates} {keys} | sort",
                "-v shows what the two have in common.",
            ),
        ),
    )


def _names(answers: Answers, scene: Scene) -> Step:
    out, chosen = answers.fresh(), answers.rng.choice(scene.certificates)
    show = f"openssl x509 -noout -ext subjectAltName -in certs/{chosen.file}.crt"
    return answers.step(
        out,
        sorted(chosen.names),
        f"{show} | grep -o 'DNS:[^, ]*' | cut -d: -f2 | sort",
        says=(
            f"Write all alternative DNS names of the certificate {scene.at}/certs/{chosen.file}.crt to {out}, one per line, sorted, without any prefix.",
            f"For which alternative names (subjectAltName, DNS) was {scene.at}/certs/{chosen.file}.crt issued? The bare names sorted, one a line, in {out}.",
            f"{out} should list the DNS names in the subjectAltName of {scene.at}/certs/{chosen.file}.crt, nothing but the names, in alphabetical order, one on each line.",
        ),
        thought="The extension holds them behind DNS:, separated by commas.",
        slips=(
            (
                "requirement_violation",
                f"{show} | grep -o 'DNS:[^, ]*' | sort",
                "openssl writes DNS: in front of names.",
            ),
            (
                "analysis_error",
                f"openssl x509 -noout -subject -in certs/{chosen.file}.crt | sed 's/.*CN = //'",
                "The name of a certificate is in its subject.",
            ),
        ),
    )


def _request(answers: Answers, scene: Scene) -> Step:
    out, chosen = answers.fresh(".csr"), answers.rng.choice(scene.certificates)
    host = f"{answers.rng.choice(words.TERMS)}-{answers.rng.randint(2, 99)}.example.org"
    file, key = out.rsplit("/", 1)[1], f"{scene.at}/keys/{chosen.key}.key"
    make = f"openssl req -new -key keys/{chosen.key}.key -subj '/O={chosen.organisation}/CN={host}' -out {file}"
    other = next(c.key for c in scene.certificates if c != chosen)
    return Step(
        says=(
            f"Make a certificate signing request {out} (PEM) with the key {key}; its subject is exactly O={chosen.organisation}, CN={host}.",
            f"We need a signing request for {host}: use the key {key}, organisation (O) {chosen.organisation}, common name (CN) {host} and nothing else in the subject, and save it in PEM form as {out}.",
            f"Please prepare {out}, a PEM signing request under the key {key}, with O={chosen.organisation} and CN={host} as the whole subject.",
        ),
        thought="openssl req makes the request, -subj spares the questions.",
        command=make,
        checks=(
            check(
                out,
                "request",
                "read_bytes(path)",
                "found = run('openssl', 'req', '-noout', '-subject', '-nameopt', 'RFC2253', '-in', path).strip()",
                f"assert found == 'subject=CN={host},O={chosen.organisation}', found",
                f"own = run('openssl', 'pkey', '-pubout', '-in', {key!r})",
                "assert run('openssl', 'req', '-noout', '-pubkey', '-in', path) == own, 'it was made with another key'",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                make.replace(f"keys/{chosen.key}", f"keys/{other}"),
                "One key is as good as the other.",
            ),
            slip(
                "requirement_violation",
                make.replace(f"/O={chosen.organisation}", ""),
                "The common name is what matters.",
            ),
            slip("command_error", make.replace("-new ", "-new -x509 "), "A certificate can serve as request."),
        ),
    )


_STEPS = (_dates, _expired, _pairs, _names, _request)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions, and perhaps a request."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    return answers.piece(
        family=name,
        title="Look after certificates",
        openings=(
            f"Certificates (PEM) are in {scene.at}/certs, private keys in {scene.at}/keys.",
            f"I inherited a folder of certificates, {scene.at}/certs, and one of private keys, {scene.at}/keys, all in PEM form.",
            f"This is about the certificates in {scene.at}/certs and the keys in {scene.at}/keys.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, f"keys/{c.key}.key", _key(rng)) for c in scene.certificates],
        setup=(
            "mkdir certs",
            *_AUTHORITY,
            *(command for c in scene.certificates for command in c.commands()),
            "cd .. && rm -r .ca",
        ),
        made=[f"certs/{c.file}.crt" for c in scene.certificates],
    )

"""Who may log in to a running sshd, and how: authorised keys and settings, tested by logging in and by `sshd -T`."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file
from sandbox.services import Service

name = "ssh-access"
category = "hardening"
tools: tuple[str, ...] = ("ssh", "sshd", "sed")
depths = range(1, 5)

_CONF = """\
# {phrase}
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
PidFile {directory}/sshd.pid
AuthorizedKeysFile {directory}/authorized_keys
UsePAM no
PasswordAuthentication yes
PermitRootLogin prohibit-password
MaxAuthTries 6
X11Forwarding yes
ClientAliveInterval 0
"""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The server, and whose keys there are."""

    port: int
    directory: str
    known: tuple[str, ...]
    """May log in at the start."""
    new: str

    @property
    def reload(self) -> str:
        return f"kill -HUP $(cat {self.directory}/sshd.pid)"

    def login(self, who: str, command: str) -> str:
        """A shell command."""
        options = "-F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        return f"ssh {options} -p {self.port} -i {self.directory}/keys/{who} agent@127.0.0.1 {command}"

    def enters(self, who: str) -> str:
        """A Python statement."""
        return f"assert run('bash', '-c', {self.login(who, 'echo entered')!r}) == 'entered\\n'"

    def refused(self, who: str) -> str:
        attempt = f"! {self.login(who, 'true')} 2>/dev/null"
        return f"assert run('bash', '-c', {attempt!r}) == ''"


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    people = words.distinct(rng, words.PEOPLE, 5)
    access = Access(port=rng.randint(2223, 2299), directory=place.directory, known=tuple(people[:4]), new=people[4])
    jobs = rng.sample((_admit, _expel, _settings, _force), depth)
    make = "ssh-keygen -q -t ed25519 -N '' -C"
    return assemble(
        family=name,
        title=f"Access by ssh on port {access.port}",
        place=place,
        openings=(
            f"An sshd runs on 127.0.0.1, port {access.port}, with the configuration {place.directory}/sshd_config and the keys allowed for user agent in {place.directory}/authorized_keys; the people's keys are in {place.directory}/keys. Change its set-up as follows, let it read its configuration again, and keep everybody else's access as it is.",
            f"The sshd on 127.0.0.1 port {access.port} uses {place.directory}/sshd_config, and {place.directory}/authorized_keys says who may log in as agent (their keys lie in {place.directory}/keys). Do this, have it reread its configuration, and change nothing for the others.",
            f"We run an sshd here (127.0.0.1, port {access.port}, configuration {place.directory}/sshd_config, allowed keys for agent in {place.directory}/authorized_keys, everyone's keys in {place.directory}/keys). It should be changed like this and pick it up; nobody else may notice:",
        ),
        steps=[job(rng, access, place) for job in jobs],
        files=(
            text_file(
                place,
                "sshd_config",
                _CONF.format(phrase=words.phrase(rng, 3, 6), port=access.port, directory=place.directory),
            ),
        ),
        setup=(
            f"{make} host -f host_key",
            "mkdir -m 700 keys",
            *(f"{make} {who}@{rng.choice(words.HOSTS)} -f keys/{who}" for who in people),
            f"(cd keys && cat {' '.join(f'{who}.pub' for who in access.known)}) > authorized_keys",
            "chmod 600 authorized_keys",
        ),
        services=(
            Service(
                name="sshd",
                command=f"/usr/sbin/sshd -D -e -f {place.directory}/sshd_config",
                check=f"ssh-keyscan -p {access.port} 127.0.0.1 | grep -q ed25519",
            ),
        ),
        initial_checks=(
            present(place.directory, ("sshd_config", "authorized_keys", f"keys/{access.new}.pub")),
            check(place.directory, "access", access.enters(access.known[2]), access.refused(access.new)),
        ),
        guards=(check(place.directory, "others", access.enters(access.known[2]), access.enters(access.known[3])),),
    )


def _admit(rng: random.Random, access: Access, place: Place) -> Step:
    who = access.new
    right = f"cat keys/{who}.pub >> authorized_keys"
    return Step(
        says=(
            f"Let {who} log in as agent with the key {place.directory}/keys/{who}.pub.",
            f"Allow {who}'s key ({place.directory}/keys/{who}.pub) for logging in as agent.",
            f"{who.title()} needs access too: admit the key {place.directory}/keys/{who}.pub for agent.",
        ),
        thought="The public key becomes one more line.",
        command=right,
        checks=(check(place.directory, "admitted", access.enters(who)),),
        mistakes=(
            slip(
                "command_error",
                f"cp authorized_keys kept && cat keys/{who}.pub > authorized_keys",
                "The key goes into the file.",
                "mv kept authorized_keys",
            ),
            slip(
                "analysis_error",
                f"cut -d' ' -f2 keys/{who}.pub >> authorized_keys",
                "Only the key itself counts.",
                "sed -i '$d' authorized_keys",
            ),
            slip(
                "requirement_violation",
                f"mkdir -p ~/.ssh && cat keys/{who}.pub >> ~/.ssh/authorized_keys",
                "Keys belong into ~/.ssh.",
                "rm -r ~/.ssh",
            ),
        ),
    )


def _expel(rng: random.Random, access: Access, place: Place) -> Step:
    who = access.known[0]
    return Step(
        says=(
            f"Take away {who}'s access: the key {place.directory}/keys/{who}.pub may no longer log in.",
            f"Remove {who}'s key ({place.directory}/keys/{who}.pub) from those that may log in.",
            f"{who.title()} has left, so {place.directory}/keys/{who}.pub must not get in any more.",
        ),
        thought="Delete the line with that comment.",
        command=f"sed -i '/ {who}@/d' authorized_keys",
        checks=(check(place.directory, "expelled", access.refused(who)),),
        mistakes=(
            slip("verification_failure", f"grep -v ' {who}@' authorized_keys", "The list is without that key."),
            slip(
                "analysis_error",
                f"sed -i 's/ {who}@/ former-{who}@/' authorized_keys",
                "The name is what is looked up.",
                f"sed -i 's/ former-{who}@/ {who}@/' authorized_keys",
            ),
            slip(
                "hallucination",
                f"echo 'DenyKeys {who}' >> sshd_config",
                "DenyKeys locks a key out.",
                "sed -i '/^DenyKeys/d' sshd_config",
            ),
        ),
    )


def _settings(rng: random.Random, access: Access, place: Place) -> Step:
    tries, seconds = rng.randint(2, 4), rng.choice((60, 90, 120, 180, 240, 300))
    wanted = {
        "PasswordAuthentication": "no",
        "PermitRootLogin": "no",
        "MaxAuthTries": str(tries),
        "ClientAliveInterval": str(seconds),
    }
    chosen = {key: wanted[key] for key in rng.sample(sorted(wanted), 3)}
    spoken = ", ".join(f"{key} {value}" for key, value in chosen.items())
    script = "; ".join(f"s/^{key} .*/{key} {value}/" for key, value in chosen.items())
    show = f"run('/usr/sbin/sshd', '-T', '-f', {f'{place.directory}/sshd_config'!r}).splitlines()"
    expected = [f"{key} {value}".lower() for key, value in chosen.items()]
    first, value = next(iter(chosen.items()))
    return Step(
        says=(
            f"Set in {place.directory}/sshd_config: {spoken}.",
            f"The effective settings of {place.directory}/sshd_config shall be {spoken}.",
            f"Please tighten {place.directory}/sshd_config: {spoken} is what should hold.",
        ),
        thought="Each setting has its line; the first line of a key counts.",
        command=f"sed -i '{script}' sshd_config && {access.reload}",
        checks=(
            check(
                place.directory,
                "settings",
                f"settings = {show}\nassert [line for line in {expected!r} if line not in settings] == []",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                "printf '%s\\n' "
                + " ".join(f"'{key} {value}'" for key, value in chosen.items())
                + f" >> sshd_config && {access.reload}",
                "Later lines win over earlier ones.",
                "sed -i '13,$d' sshd_config",
            ),
            slip(
                "requirement_violation",
                f"sed -i 's/^{first} .*/{first} {value}/' sshd_config && {access.reload}",
                "The most important one is set.",
            ),
            slip("verification_failure", f"sed '{script}' sshd_config", "The output shows the settings."),
        ),
    )


def _force(rng: random.Random, access: Access, place: Place) -> Step:
    who, word = access.known[1], f"{rng.choice(words.TERMS)}-{words.token(rng, 4)}"
    right = f"sed -i '/ {who}@/s/^/command=\"echo {word}\" /' authorized_keys"
    back = f"sed -i '/ {who}@/s/^.*ssh-ed25519/ssh-ed25519/' authorized_keys"
    output = f"run('bash', '-c', {access.login(who, 'id')!r})"
    return Step(
        says=(
            f"Whatever {who} asks for when logging in, the command `echo {word}` is run instead (an option of that key in {place.directory}/authorized_keys); the others are not affected.",
            f"Force the command `echo {word}` for {who}'s key in {place.directory}/authorized_keys, and for no other key.",
            f"{who.title()}'s key should get nothing but the output of `echo {word}`, whatever is asked for, by way of {place.directory}/authorized_keys. It's only that key.",
        ),
        thought="A forced command in front of that key.",
        command=right,
        checks=(check(place.directory, "forced", f"assert {output} == '{word}\\n'"),),
        mistakes=(
            slip(
                "command_error",
                f"sed -i '/ {who}@/s/^/echo {word} /' authorized_keys",
                "The command stands before the key.",
                back,
            ),
            slip(
                "requirement_violation",
                f"sed -i 's/^/command=\"echo {word}\" /' authorized_keys",
                "Each line gets the command.",
                "sed -i 's/^.*ssh-ed25519/ssh-ed25519/' authorized_keys",
            ),
            slip(
                "hallucination",
                f"echo 'ForceCommand echo {word}' > sshd_config.{who}",
                "Settings for one key are read from a file named after it.",
                f"rm sshd_config.{who}",
            ),
        ),
    )

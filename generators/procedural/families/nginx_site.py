"""The site of a running nginx: locations, redirects, headers, error pages, tested by requests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file
from sandbox.services import Service

name = "nginx-site"
category = "service set-up"
tools: tuple[str, ...] = ("nginx", "curl", "sed")
depths = range(1, 5)

_MARK = "# further locations"


@dataclass(frozen=True, kw_only=True)
class Site:
    """The server and where its site is configured."""

    port: int
    directory: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def reload(self) -> str:
        return f"nginx -e stderr -c {self.directory}/nginx.conf -s reload"

    def insert(self, text: str) -> str:
        """Add configuration before the mark, and reload."""
        return f"sed -i 's|{_MARK}|{text}\\n        {_MARK}|' site.conf && {self.reload}"

    def undo(self, start: str) -> str:
        """Take out the line that begins so."""
        return f"sed -i '\\|^ *{start}|d' site.conf && {self.reload}"

    def got(self, path: str, form: str, *options: str) -> str:
        """A Python expression: what curl writes about the answer."""
        argv = ["curl", "-s", "-o", "/dev/null", "-w", form, *options, f"{self.url}{path}"]
        return f"run(*{argv!r})"

    def body(self, path: str) -> str:
        return f"run(*{['curl', '-s', f'{self.url}{path}']!r})"


_CONF = """\
daemon off;
pid {directory}/nginx.pid;
worker_processes 1;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off;
    types {{ text/html html; text/plain txt; }}
    client_body_temp_path {directory}/tmp/body;
    proxy_temp_path {directory}/tmp/proxy;
    fastcgi_temp_path {directory}/tmp/fastcgi;
    uwsgi_temp_path {directory}/tmp/uwsgi;
    scgi_temp_path {directory}/tmp/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {directory}/www;
        include {directory}/site.conf;
    }}
}}
"""
_SITE = """\
        # {phrase}
        location = /health {{ return 200 "ok\\n"; }}
        {mark}
"""


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    site = Site(port=rng.randint(8081, 8179), directory=place.directory)
    page = f"<h1>{words.phrase(rng, 3, 6)}</h1>\n"
    jobs = rng.sample((_answer, _redirect, _forbid, _header, _missing_page), depth)
    guard = "\n".join(
        [f"assert {site.body('/health')} == 'ok\\n'", f"assert {site.body('/index.html')} == {page!r}"],
    )
    return assemble(
        family=name,
        title=f"nginx on port {site.port}",
        place=place,
        openings=(
            f"An nginx serves {site.url}; its configuration is {place.directory}/nginx.conf, the site's part of it {place.directory}/site.conf. Change the site as follows and reload nginx; everything else must answer as before.",
            f"{site.url} is served by an nginx with the configuration {place.directory}/nginx.conf, which includes {place.directory}/site.conf. The following should be so, after a reload; other requests get the same answers as now.",
            f"We have a small nginx at {site.url} (configuration in {place.directory}/nginx.conf, the site in {place.directory}/site.conf). Please arrange this, reload it, and break nothing else:",
        ),
        steps=[job(rng, site, place) for job in jobs],
        files=(
            text_file(place, "nginx.conf", _CONF.format(directory=place.directory, port=site.port)),
            text_file(place, "site.conf", _SITE.format(phrase=words.phrase(rng, 3, 6), mark=_MARK)),
            text_file(place, "www/index.html", page),
            text_file(place, "www/private/plan.txt", words.prose(rng, 2)),
            text_file(place, "www/lost.html", f"<h1>{words.phrase(rng, 2, 4)}</h1>\n"),
        ),
        setup=("mkdir tmp",),
        services=(
            Service(
                name="nginx",
                command=f"nginx -e stderr -c {place.directory}/nginx.conf",
                check=f"curl -s -o /dev/null {site.url}/",
            ),
        ),
        initial_checks=(
            present(place.directory, ("nginx.conf", "site.conf", "www/index.html")),
            check(place.directory, "server", guard),
        ),
        guards=(check(place.directory, "other_answers", guard),),
    )


def _answer(rng: random.Random, site: Site, place: Place) -> Step:
    path, text = f"/{rng.choice(words.TERMS)}-status", f"{rng.choice(words.PROJECTS)} {words.token(rng, 4)}"
    right = f'location = {path} {{ return 200 "{text}"; }}'
    return Step(
        says=(
            f"A request for {path} gets the status 200 and the body `{text}`, without anything after it.",
            f"Answer {path} with status 200; the whole body is `{text}`, no line end.",
            f"{path} should say `{text}` (just that, no newline) with status 200.",
        ),
        thought="An exact location with a fixed answer.",
        command=site.insert(right),
        checks=(
            check(
                place.directory,
                "answer",
                f"assert {site.body(path)} == {text!r}\nassert {site.got(path, '%{http_code}')} == '200'",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                site.insert(right.replace(";", "", 1)),
                "The directive ends with the brace.",
                site.undo(f"location = {path}"),
            ),
            slip(
                "analysis_error",
                site.insert(right.replace("200", "201")),
                "Something is created by it.",
                site.undo(f"location = {path}"),
            ),
            slip(
                "requirement_violation",
                f"echo '{text}' > www{path}",
                "A file with that name is served.",
                f"rm www{path}",
            ),
        ),
    )


def _redirect(rng: random.Random, site: Site, place: Place) -> Step:
    old, new = f"/{rng.choice(words.STEMS)}-old", f"/{rng.choice(words.TERMS)}/new"
    right = f"location = {old} {{ return 301 {new}; }}"
    target = f"301 {site.url}{new}"
    undo = site.undo(f"location = {old}")
    return Step(
        says=(
            f"A request for {old} is redirected permanently (301) to {new} on the same server.",
            f"Redirect {old} to {new} on this server, with status 301.",
            f"Whoever asks for {old} should be sent on to {new} here for good, that is with a 301.",
        ),
        thought="An exact location that returns 301.",
        command=site.insert(right),
        checks=(
            check(
                place.directory,
                "redirect",
                f"assert {site.got(old, '%{http_code} %{redirect_url}')} == {target!r}",
            ),
        ),
        mistakes=(
            slip("analysis_error", site.insert(right.replace("301", "302")), "302 is the usual redirect.", undo),
            slip(
                "command_error",
                site.insert(f"location = {new} {{ return 301 {old}; }}"),
                "From one to the other.",
                site.undo(f"location = {new}"),
            ),
            slip(
                "hallucination",
                site.insert(f"redirect 301 {old} {new};"),
                "nginx has a redirect directive.",
                site.undo("redirect 301"),
            ),
        ),
    )


def _forbid(rng: random.Random, site: Site, place: Place) -> Step:
    right = "location /private/ { deny all; }"
    undo = site.undo("location /private/")
    return Step(
        says=(
            "Every request below /private/ is refused with 403; the files there stay.",
            "Refuse whatever begins with /private/ (status 403), without removing the files.",
            "Nobody may fetch anything below /private/ any more: 403 for all of it, and the files stay where they are.",
        ),
        thought="A prefix location that denies all.",
        command=site.insert(right),
        checks=(
            check(
                place.directory,
                "forbidden",
                f"assert {site.got('/private/plan.txt', '%{http_code}')} == '403'\n"
                f"assert {site.got('/private/other', '%{http_code}')} == '403'\n"
                "assert Path(path, 'www/private/plan.txt').is_file()",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                site.insert("location = /private/ { deny all; }"),
                "The folder is denied.",
                site.undo("location = /private/"),
            ),
            slip(
                "command_error",
                site.insert("location /private/ { return 404; }"),
                "What is not to be seen is not found.",
                undo,
            ),
            slip(
                "requirement_violation",
                "mv www/private www/.private",
                "It is out of the way now.",
                "mv www/.private www/private",
            ),
        ),
    )


def _header(rng: random.Random, site: Site, place: Place) -> Step:
    header, value = f"X-{rng.choice(words.TERMS).title()}-Id", words.token(rng, 6)
    right = f"add_header {header} {value} always;"
    undo = site.undo(f"add_header {header}")
    form = f"%header{{{header.lower()}}}"
    return Step(
        says=(
            f"Every answer of the site, errors included, carries the header {header} with the value {value}.",
            f"Add a header {header} with the value {value} to all answers of the site, those with errors too.",
            f"I need {header}: {value} as a header on whatever the site answers, also when it's an error.",
        ),
        thought="add_header with always, at the level of the server.",
        command=site.insert(right),
        checks=(
            check(
                place.directory,
                "header",
                f"assert {site.got('/index.html', form)} == {value!r}\nassert {site.got('/nowhere-at-all', form)} == {value!r}",
            ),
        ),
        mistakes=(
            slip("analysis_error", site.insert(right.replace(" always", "")), "add_header adds it to answers.", undo),
            slip(
                "requirement_violation",
                site.insert(f"location = /index.html {{ {right} }}"),
                "The page carries it.",
                site.undo("location = /index.html"),
            ),
            slip(
                "hallucination",
                site.insert(f"set_header {header} {value};"),
                "set_header sets a header.",
                site.undo("set_header"),
            ),
        ),
    )


def _missing_page(rng: random.Random, site: Site, place: Place) -> Step:
    missing = f"/{rng.choice(words.STEMS)}-{words.token(rng, 4)}"
    right = "error_page 404 /lost.html;"
    undo = site.undo("error_page")
    page = "read_text(path + '/www/lost.html')"
    return Step(
        says=(
            f"A request for something that does not exist, such as {missing}, still has the status 404 and gets the page /lost.html as its body.",
            f"Show the page /lost.html for what is not found, {missing} for example; the status stays 404.",
            f"If somebody asks for what isn't there (say {missing}), let them see /lost.html, and keep it a 404.",
        ),
        thought="error_page with the page's path keeps the status.",
        command=site.insert(right),
        checks=(
            check(
                place.directory,
                "lost",
                f"assert {site.body(missing)} == {page}\nassert {site.got(missing, '%{http_code}')} == '404'",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                site.insert("error_page 404 =200 /lost.html;"),
                "The page is found, so it is a 200.",
                undo,
            ),
            slip(
                "analysis_error",
                site.insert(f"location = {missing} {{ return 302 /lost.html; }}"),
                "They are sent to the page.",
                site.undo(f"location = {missing}"),
            ),
            slip("verification_failure", f"curl -s {site.url}/lost.html", "The page is served."),
        ),
    )

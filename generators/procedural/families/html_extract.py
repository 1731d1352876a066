"""A saved shop page: links, prices, headings and pictures taken out of its HTML."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "html-extract"
category = "web content extraction"
tools: tuple[str, ...] = ("awk", "grep", "sed", "sort")
depths = range(1, 6)


@dataclass(frozen=True)
class Ware:
    """A row of the page's table; the price is in cents."""

    name: str
    place: str
    price: int
    sold_out: bool

    def html(self) -> str:
        mark = ' class="sold-out"' if self.sold_out else ""
        return f"<tr{mark}><td>{self.name}</td><td>{self.place}</td><td>{self.price // 100}.{self.price % 100:02d}</td></tr>"


@dataclass(frozen=True)
class Scene:
    """What is on the page, each in its order there."""

    at: str
    file: str
    wares: list[Ware]
    links: list[str]
    heads: list[tuple[int, str]]
    pictures: list[tuple[str, str | None]]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    def html(self, rng: random.Random) -> str:
        parts = [
            "<html><head>",
            f"<title>{words.phrase(rng, 2, 3)}</title>",
            '<link rel="stylesheet" href="https://static.example.org/all.css">',
            "</head><body>",
        ]
        links, pictures = list(self.links), list(self.pictures)
        for level, head in self.heads:
            parts += [f"<h{level}>{head}</h{level}>", f"<p>{words.phrase(rng)}"]
            for link in (links.pop(0), links.pop(0)) if len(links) > 1 else links[:1]:
                parts.append(
                    f'see <a class="out" href="{link}">{words.phrase(rng, 1, 2)}</a>, {words.phrase(rng, 1, 3)}'
                )
            parts.append("</p>")
            if pictures:
                source, text = pictures.pop(0)
                parts.append(f'<img src="{source}"' + (f' alt="{text}">' if text else ">"))
        parts += ["<!-- <h2>Old stock</h2> -->", "<table>", "<tr><th>name</th><th>place</th><th>price</th></tr>"]
        return "\n".join([*parts, *(ware.html() for ware in self.wares), "</table>", "</body></html>", ""])


def _scene(rng: random.Random, place: Place) -> Scene:
    goods = words.distinct(rng, words.PRODUCTS, rng.randint(9, 13))
    cheap = rng.randint(301, 989)
    prices = [cheap, rng.randint(12000, 29000), *rng.sample(range(1100, 9990), len(goods) - 2)]
    wares = [
        Ware(thing, rng.choice(words.CITIES), price, rng.random() < 0.3)
        for thing, price in zip(goods, prices, strict=True)
    ]
    wares[0] = Ware(goods[0], wares[0].place, cheap, True)
    wares[1] = Ware(goods[1], wares[1].place, prices[1], False)
    wares[2] = Ware(goods[2], wares[2].place, prices[2], True)
    wares[3] = Ware(goods[3], wares[3].place, rng.randint(9990, 9999), False)
    rng.shuffle(wares)
    heads = [(level, words.phrase(rng, 2, 4).capitalize()) for level in (1, 2, 3, 2, 3, 3, 2)]
    outside = [
        f"https://{rng.choice(words.PROJECTS)}.example.{rng.choice(('org', 'com', 'net'))}/{rng.choice(words.TERMS)}"
        for _ in range(8)
    ]
    inside = [f"/{rng.choice(words.AREAS)}/{rng.choice(words.TERMS)}.html" for _ in range(4)]
    links = list(dict.fromkeys([*outside, *inside]))
    rng.shuffle(links)
    links += [links[0], outside[0]]
    pictures: list[tuple[str, str | None]] = [
        (f"img/{stem}.{rng.choice(('png', 'jpg'))}", words.phrase(rng, 2, 3) if n % 2 else None)
        for n, stem in enumerate(words.distinct(rng, words.STEMS, 6))
    ]
    rng.shuffle(pictures)
    return Scene(
        place.directory, f"{rng.choice(words.STEMS)}-{rng.choice(words.CITIES)}.html", wares, links, heads, pictures
    )


def _links(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    found = sorted({link for link in scene.links if link.startswith("https://")})
    attribute = 'grep -o \'<a [^>]*href="https://[^"]*"\''
    tail = "sed 's/.*href=\"//; s/\"$//'"
    return answers.step(
        out,
        found,
        f"{attribute} {scene.file} | {tail} | sort -u",
        says=(
            f"Write the targets of all <a> links in {scene.path} that begin with https:// to {out}, each once, one per line, sorted by byte order.",
            f"Which https:// addresses do the <a> elements of {scene.path} link to? Each once, sorted plainly, one a line, in {out}.",
            f"Collect the outside links of {scene.path}: what its <a> elements point to, if it starts with https://. No repeats, sorted by bytes, one a line, in {out}.",
        ),
        thought="The href of a elements only; the stylesheet in the head is no such link.",
        slips=(
            (
                "analysis_error",
                f'grep -o \'href="https://[^"]*"\' {scene.file} | {tail} | sort -u',
                "Every href is a link.",
            ),
            (
                "requirement_violation",
                f'grep -o \'<a [^>]*href="[^"]*"\' {scene.file} | {tail} | sort -u',
                "All links of the page are collected.",
            ),
        ),
    )


def _prices(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".csv")
    rows = sorted((ware for ware in scene.wares if not ware.sold_out), key=lambda ware: ware.price)
    cells = "sed -E 's#<tr><td>(.*)</td><td>(.*)</td><td>(.*)</td></tr>#\\1,\\2,\\3#'"
    return answers.step(
        out,
        [f"{w.name},{w.place},{w.price // 100}.{w.price % 100:02d}" for w in rows],
        f"grep '^<tr><td>' {scene.file} | {cells} | sort -t, -k3,3n",
        says=(
            f"Write the rows of the table in {scene.path} that don't have the class sold-out to {out} as `NAME,PLACE,PRICE`, cheapest first, without header.",
            f"Make a list of what can still be bought from the table in {scene.path} (rows with class sold-out can't): `NAME,PLACE,PRICE` by rising price, no header, in {out}.",
            f"I'd like the table of {scene.path} as `NAME,PLACE,PRICE` lines in {out}, from cheap to dear, no heading and nothing that carries the class sold-out.",
        ),
        thought="Rows without a class, cells joined by commas, sorted as numbers.",
        slips=(
            (
                "requirement_violation",
                f"grep '<td>' {scene.file} | sed 's/ class=\"sold-out\"//' | {cells} | sort -t, -k3,3n",
                "The table has all the rows.",
            ),
            (
                "command_error",
                f"grep '^<tr><td>' {scene.file} | {cells} | sort -t, -k3,3",
                "sort puts the lowest price first.",
            ),
        ),
    )


def _headings(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    lines = [f"{'  ' * (level - 1)}{head}" for level, head in scene.heads]
    program = "sed -nE 's#^<h1>(.*)</h1>$#\\1#p; s#^<h2>(.*)</h2>$#  \\1#p; s#^<h3>(.*)</h3>$#    \\1#p'"
    return answers.step(
        out,
        lines,
        f"{program} {scene.file}",
        says=(
            f"Write the outline of {scene.path} to {out}: the texts of h1, h2 and h3 in their order, one per line, h2 indented by two blanks and h3 by four; what is commented out doesn't count.",
            f"Make an outline of {scene.path} in {out}: one line for each h1, h2, h3 as they come, two blanks in front of h2, four in front of h3, nothing from comments.",
            f"What is the structure of {scene.path}? Headings in order, one a line, in {out}; h1 at the margin, h2 two blanks in, h3 four. Ignore comments.",
        ),
        thought="One substitution for each level, anchored, so that the comment stays out.",
        slips=(
            (
                "analysis_error",
                program.replace("^<h2>(.*)</h2>$", "^.*<h2>(.*)</h2>.*$") + f" {scene.file}",
                "The h2 elements are found by their tags.",
            ),
            (
                "requirement_violation",
                program.replace("#    \\1#", "#\\1#").replace("#  \\1#", "#\\1#") + f" {scene.file}",
                "The texts one after the other are the outline.",
            ),
        ),
    )


def _pictures(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    tags = f"grep -o '<img [^>]*>' {scene.file}"
    tail = 'sed -E \'s/.*src="([^"]*)".*/\\1/\''
    return answers.step(
        out,
        [source for source, text in scene.pictures if text is None],
        f"{tags} | grep -v ' alt=' | {tail}",
        says=(
            f"Write the sources (src) of all <img> elements in {scene.path} that have no alt text to {out}, in their order, one per line.",
            f"Which pictures of {scene.path} lack an alt attribute? Their src, one a line, as they come, in {out}.",
            f"For accessibility I need the src of each img in {scene.path} without alt, in page order, one a line, in {out}.",
        ),
        thought="All img tags, without those that have alt, reduced to their src.",
        slips=(
            ("command_error", f"{tags} | grep ' alt=' | {tail}", "grep finds the tags by their alt."),
            ("requirement_violation", f"{tags} | grep -v ' alt='", "The tags show their sources."),
        ),
    )


def _sum(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    sold = [ware.price for ware in scene.wares if ware.sold_out]
    total = sum(ware.price for ware in scene.wares)
    program = '{gsub(/\\./, "", $(NF - 4)); all += $(NF - 4)} /sold-out/ {n++} END {printf "%d %d %d.%02d\\n", NR, n, all / 100, all % 100}'
    return answers.step(
        out,
        [f"{len(scene.wares)} {len(sold)} {total // 100}.{total % 100:02d}"],
        f"grep '<td>' {scene.file} | awk -F'[<>]' '{program}'",
        says=(
            f"Write one line `ROWS SOLD TOTAL` about the table in {scene.path} to {out}: number of rows without the header row, number with the class sold-out, sum of all prices with two decimals.",
            f"Sum up the table of {scene.path} on one line of {out}: how many rows it has (its header row aside), how many of them have the class sold-out, and all prices together to two decimals; single blanks between.",
            f"How many wares are in the table of {scene.path}, how many of those are sold-out, and what do all cost together (two decimals)? Three numbers with blanks between on one line of {out}.",
        ),
        thought="Prices in cents are whole numbers; rows with td are the wares.",
        slips=(
            ("analysis_error", f"grep '<tr' {scene.file} | awk -F'[<>]' '{program}'", "Every tr is a row."),
            (
                "requirement_violation",
                f"grep '^<tr><td>' {scene.file} | awk -F'[<>]' '{program}'",
                "What is sold out has no price any more.",
            ),
        ),
    )


_STEPS = (_links, _prices, _headings, _pictures, _sum)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent extractions from one page."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    return answers.piece(
        family=name,
        title="Take data from a web page",
        openings=(
            f"{scene.path} is a saved web page, one element or table row per line.",
            f"I saved a shop page as {scene.path} and need some things out of its HTML.",
            f"There's a web page in {scene.path}, saved some time ago.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, scene.file, scene.html(rng))],
    )

"""Pools of names and data that families draw from, and the draws that several of them need.

Invariants:
- Everything drawn is a function of the random stream alone; all dates lie in the past.
- Words are lower case ASCII without spaces unless the name says otherwise, so that they are safe in paths and sort the
  same in every locale.
- Addresses come from the ranges reserved for documentation and private use.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

PEOPLE = tuple(
    "ada amir anika anton aylin beatriz bruno carla cem chen chiara dana daniel diego elena elif emma farid fatima felix "
    "freya gita greta hana hannes hugo ines irina isaac ivan jana jonas julia kaan karim kenji lars leila lena luca lucia "
    "magnus mara marco maya mei mila mona nadia nils noor olga omar otto paula pedro petra priya rafael rania rosa ruben "
    "sara selim sofia stefan tariq tessa theo tomas uma vera viktor wanda yara yusuf zoe".split()
)
SURNAMES = tuple(
    "abbas acosta aydin becker blanc costa dahl demir duarte engel faber ferrari fischer garcia haas hansen huber ibrahim "
    "ito jansen kaya keller kim kowalski kraus kumar lang larsen leroy lopez maier marin meyer mori moreau nakata nowak "
    "okafor olsen ortiz patel pohl quinn rahman reyes rossi ruiz sato schmid silva singh sousa stein suzuki tanaka torres "
    "varga vogel weber winter wolf yamada yilmaz zhang".split()
)
TEAMS = tuple(
    "billing payments platform search logistics support growth data-science security release operations web mobile "
    "infrastructure accounts inventory research quality onboarding partners".split()
)
SERVICES = tuple(
    "auth-gateway billing-api cart-service catalog-sync checkout-web courier-bot credit-check dispatch-api doc-store "
    "edge-proxy event-relay fraud-watch geo-lookup image-resizer invoice-mailer label-printer ledger-core login-web "
    "mail-relay media-cache notify-hub order-intake parcel-track payment-bridge pdf-render price-feed profile-api "
    "quota-guard rate-engine report-builder return-desk route-planner search-index session-store shipping-api sku-mapper "
    "sms-sender stock-sync survey-api tax-calc ticket-desk token-issuer upload-api user-export vault-proxy voucher-api "
    "warehouse-api web-hooks".split()
)
HOSTS = tuple(
    f"{role}{n:02d}" for role in ("app", "cache", "db", "edge", "log", "mq", "web", "worker") for n in range(1, 10)
)
PROJECTS = tuple(
    "acorn alder amber anchor aspen atlas aurora badger basalt beacon birch bison boulder bramble canyon cedar cobalt "
    "comet condor copper coral cricket cypress dahlia delta drift dune ember falcon fern finch fjord flint garnet ginkgo "
    "glacier granite grove harbor hazel heron hornet indigo iris ivory jasper juniper kestrel lagoon larch lark linden "
    "lotus lynx magnet maple marble meadow merlin mesa mica mistral nebula nimbus north oak onyx opal orchid osprey otter "
    "pebble pelican petrel pine plover prairie quartz quill raven reef ridge robin rowan saffron sage sequoia sierra slate "
    "sorrel sparrow spruce summit swift tamarind teal thicket thistle tundra umber valley violet walnut willow wren zephyr".split()
)
AREAS = tuple(
    "archive assets audit backup batch build cache config content data deploy docs drop export handover inbox intake jobs "
    "journal lab ledger mirror notes office ops outbox pipeline portal records release reports review samples shared site "
    "staging storage studio sync tools vault workspace".split()
)
STEMS = tuple(
    "agenda appendix assets balance baseline branding briefing budget calendar campaign catalog changelog charter "
    "checklist contacts contract coverage customers dashboard deadlines delivery design directory draft estimate events "
    "expenses faq feedback figures forecast glossary guide handbook hiring incident index inspection interview invoice "
    "itinerary keynote layout lessons license login manifest manual meeting memo metrics migration milestones minutes "
    "mockup newsletter notes offer onboarding orders outline overview payroll plan planning poster postmortem pricing "
    "proposal protocol questions quote readme receipts recipe reference register release remarks report request research "
    "results retro review risks roadmap roster rota salary sales schedule scope seating shipping shortlist signup sketch "
    "speakers staffing statement stock strategy summary supplies survey tasks template thread tickets timeline topics "
    "tracker training travel tutorial vendors visitors wiki workshop".split()
)
CITIES = tuple(
    "athens basel bergen bilbao bordeaux bremen bruges cairo cork dakar delhi doha dublin essen geneva genoa ghent graz "
    "hanoi helsinki izmir jakarta kyoto lagos leeds lima linz lisbon lugano lyon malaga malmo manila milan nairobi nantes "
    "naples osaka oslo porto prague quito riga rome rouen salzburg seoul seville sofia tallinn tampere tirana trieste "
    "tunis turin utrecht vienna vilnius warsaw zagreb zurich".split()
)
PRODUCTS = tuple(
    "adapter backpack basket battery bench blanket blender bottle bracket brush bucket cable candle carpet chair charger "
    "clamp compass cooler curtain drill easel faucet folder funnel gloves grinder hammer heater helmet hinge hook kettle "
    "keyboard ladder lamp lantern locker magnet mirror monitor mug notebook padlock pillow plate printer pump rack router "
    "rug ruler saw scale scanner shelf shovel sofa speaker stapler stool switch table tent thermos toolbox tripod umbrella "
    "vase wallet wrench".split()
)
TERMS = tuple(
    "accept account active allow amount answer apply approve arrive assign await balance bring build call cancel change "
    "charge check clear client close collect confirm connect copy count cover create current customer daily deliver "
    "design detail direct draft early effort email enter entry evening exact expect export field final first follow "
    "forward front gather general handle history hourly import inform inside invite issue item keep label large later "
    "launch leave letter level limit list local manage market member method middle minor model month morning narrow "
    "notice number offer office older open order other outside owner packet paper parcel partial pending period person "
    "phone place plain point prepare price print private process promise public quick quiet range ready reason record "
    "reduce regular reject release remain remove reply report request return review sample second section send series "
    "service settle several sheet short signal simple single small source space special stable stage standard start "
    "status store strong supply table ticket title total track transfer travel under update urgent value vendor version "
    "visit wait weekly window within work write yearly".split()
)
AGENTS = (
    "curl/7.88.1", "Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Windows NT 10.0; Win64; x64)", "python-requests/2.31.0",
    "Go-http-client/1.1", "Mozilla/5.0 (iPhone; CPU iPhone OS 16_5 like Mac OS X)", "okhttp/4.11.0", "kube-probe/1.27",
)  # fmt: skip


def distinct(rng: random.Random, pool: Sequence[str], count: int) -> list[str]:
    """`count` different entries, in drawn order."""
    return rng.sample(pool, count)


def project(rng: random.Random) -> str:
    """A directory name for a piece of work: `cedar-reports`."""
    return f"{rng.choice(PROJECTS)}-{rng.choice(AREAS)}"


def full_name(rng: random.Random) -> str:
    """`Mara Engel`."""
    return f"{rng.choice(PEOPLE).title()} {rng.choice(SURNAMES).title()}"


def login(rng: random.Random) -> str:
    """`m.engel`: first letter and surname."""
    return f"{rng.choice(PEOPLE)[0]}.{rng.choice(SURNAMES)}"


def ipv4(rng: random.Random) -> str:
    """An address from a documentation or private range."""
    prefix = rng.choice(("192.0.2", "198.51.100", "203.0.113", "10.4.17", "10.20.8", "172.16.40", "192.168.31"))
    return f"{prefix}.{rng.randint(2, 250)}"


def moment(rng: random.Random) -> datetime:
    """A second between 2019 and the end of 2024, UTC."""
    return datetime(2019, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(6 * 365 * 86400))


def day(rng: random.Random) -> str:
    """A date of those years as `2023-04-17`."""
    return moment(rng).strftime("%Y-%m-%d")


def phrase(rng: random.Random, low: int = 4, high: int = 9) -> str:
    """A few words without meaning: filler that looks like text."""
    return " ".join(rng.choice(TERMS) for _ in range(rng.randint(low, high)))


def prose(rng: random.Random, lines: int) -> str:
    """Filler of that many lines, with a newline at the end."""
    return "".join(f"{phrase(rng).capitalize()}.\n" for _ in range(lines))


def token(rng: random.Random, digits: int = 8) -> str:
    """Lower-case hexadecimal digits."""
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def file_names(rng: random.Random, count: int, suffixes: Sequence[str]) -> list[str]:
    """Different, realistic file names: `budget-2021.txt`, `minutes-mara.md`."""
    names: dict[str, None] = {}
    while len(names) < count:
        tail = rng.choice(
            (
                "",
                f"-{rng.randint(2016, 2024)}",
                f"-{rng.choice(PEOPLE)}",
                f"-v{rng.randint(2, 9)}",
                f"-{rng.choice(CITIES)}",
            )
        )
        names[f"{rng.choice(STEMS)}{tail}{rng.choice(suffixes)}"] = None
    return list(names)

"""stub"""


class Pages:
    def __init__(self, **k: object) -> None: ...
    def routes(self) -> list[object]:
        return []

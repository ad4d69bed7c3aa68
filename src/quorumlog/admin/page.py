"""The page: the last values as tables, and the throughput of the last hour. It loads nothing
external."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from quorumlog.admin.looks import Look, Seen, Table
from quorumlog.config import is_staging_name

SAMPLE_S = 30.0
HOUR_SAMPLES = 120
WIDTH, HEIGHT = 600, 80
COUNTED = ("quorumlog_log_appended_records_total", "quorumlog_broker_messages_put_total")

STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:0 1rem 2rem}
h1{font-size:1.25rem;margin:1rem 0 .2rem}h2{font-size:1.05rem;margin:1.6rem 0 .2rem}
h3{font-size:.95rem;margin:1rem 0 .2rem}
div.table{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .9rem .25rem 0;border-bottom:1px solid #8884}
td{white-space:nowrap}
td.text{white-space:normal;min-width:14rem}
@media(max-width:40rem){body{font-size:13px;padding:0 .5rem 1rem}th,td{padding-right:.5rem}}
.bad{color:#c33}.good{color:#283}
svg{width:100%;max-width:38rem;height:5rem;border-bottom:1px solid #8884}
polyline{fill:none;stroke:currentColor;stroke-width:1.5;vector-effect:non-scaling-stroke}
"""
SCRIPT = """
const main=document.querySelector("main"),stale=document.querySelector("#stale");
const events=new EventSource("/events");
events.onmessage=e=>{main.innerHTML=e.data;stale.hidden=true};
events.onerror=()=>{stale.hidden=false};
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src {_hash(STYLE)}; script-src"
    f" {_hash(SCRIPT)}; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Throughput:
    """Of each group, a point each half minute."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float]]] = {}
        """(when, how many until then), by product and group."""

    def add(self, seen: Seen) -> None:
        current = {key: total for look in seen.looks if (key := _key(look)) for total in _totals(look)}
        self._points = {key: self._points.get(key, deque(maxlen=HOUR_SAMPLES + 1)) for key in current}
        for key, total in current.items():
            points = self._points[key]
            if not points or seen.at_s - points[-1][0] >= SAMPLE_S:
                points.append((seen.at_s, total))

    def per_second(self, look: Look) -> list[float]:
        """Between neighbouring points, the oldest first."""
        points = list(self._points.get(_key(look), ()))
        pairs = pairwise(points)
        return [max(0.0, (b - a) / (at_b - at_a)) for (at_a, a), (at_b, b) in pairs]


def _key(look: Look) -> str:
    return f"{look.product} {look.group}"


def _totals(look: Look) -> Iterable[float]:
    return (
        each.value
        for each in look.samples
        if each.name in COUNTED and isinstance(each.value, float | int)
    )


def whole(seen: Seen | None, problems: Sequence[str], throughput: Throughput) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>quorumlog</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><main>{body(seen, problems, throughput)}</main>"
        '<p id="stale" class="bad" hidden>This server does not answer; the values shown are old.</p>'
        f"<script>{SCRIPT}</script></html>"
    )


def body(seen: Seen | None, problems: Sequence[str], throughput: Throughput) -> str:
    """On one line. `problems`: why it is not ready."""
    parts = ["<h1>quorumlog</h1>"]
    parts += [f'<p class="bad">{_text(each)}</p>' for each in problems] or ['<p class="good">ready</p>']
    looks = () if seen is None else seen.looks
    for look in sorted(looks, key=lambda each: is_staging_name(each.group)):
        parts.append(f"<h2>{_text(look.product)} {_text(look.group)}</h2>")
        parts.append(_chart(throughput.per_second(look)))
        parts += [_table(each) for each in look.tables() if each.rows]
    return "".join(parts)


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(each)}</th>" for each in table.headings)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return (
        f'<h3>{escape(table.title)}</h3><div class="table"><table><tr>{heads}</tr>{rows}</table></div>'
    )


def _text(value: object) -> str:
    """On one line."""
    return escape(" ".join(str(value).split()))


def _cell(value: object) -> str:
    text = f"{value:,}" if type(value) is int else "" if value is None else _text(value)
    return f"<td{' class=text' if len(text) > 40 else ''}>{text}</td>"


def _chart(per_second: Sequence[float]) -> str:
    if len(per_second) < 2 or not any(per_second):
        return ""
    most = max(per_second)
    step = WIDTH / max(1, HOUR_SAMPLES - 1)
    first = WIDTH - step * (len(per_second) - 1)
    points = " ".join(
        f"{first + step * number:.1f},{HEIGHT - 2 - (HEIGHT - 6) * each / most:.1f}"
        for number, each in enumerate(per_second)
    )
    return (
        f"<p>entries a second in the last hour: now {per_second[-1]:,.0f}, at most {most:,.0f}</p>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f'<polyline points="{points}"/></svg>'
    )

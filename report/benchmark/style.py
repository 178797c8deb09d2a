"""How a report page looks: colours for light and dark, letters, tables, charts; and the few lines of script behind its buttons."""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark; }
:root, [data-theme=light] {
  --paper: #ffffff; --card: #f6f7f9; --ink: #16191d; --soft: #5b6470; --line: #dde1e6; --accent: #1f6feb; --accent-soft: #1f6feb26;
  --second: #b35c00; --second-soft: #b35c0026; --good: #1a7f37; --bad: #c62828;
  --read: #57a3c9; --decode: #2f7fb5; --prepare: #1b5a8c; --copy: #8a94a3; --trunk: #6b4fbb; --proposals: #b0479a; --heads: #e07b39;
  --network: #6b4fbb; --post: #3f9b6c; --report: #7fb796; --write: #c9a227; --waiting: #cbd1d8; --other: #e4e7eb; --idle: #eceff2;
}
@media screen and (prefers-color-scheme: dark) { :root:not([data-theme=light]) { DARK } }
@media screen { [data-theme=dark] { DARK } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 28px 20px 64px; }
header { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; justify-content: space-between; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 48px 0 4px; letter-spacing: -.005em; }
h3 { font-size: .95rem; margin: 22px 0 6px; }
p { margin: 6px 0 12px; max-width: 74ch; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.verdict { font-size: 1.05rem; margin: 18px 0 0; }
button { font: inherit; font-size: .85rem; color: var(--soft); background: var(--card); border: 1px solid var(--line); border-radius: 999px;
  padding: 4px 14px; cursor: pointer; min-height: 32px; }
button[aria-pressed=true] { color: var(--paper); background: var(--ink); border-color: var(--ink); }
button:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.choice { display: flex; gap: 8px; margin: 8px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 22px 0 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px 14px; }
.card .name { color: var(--soft); font-size: .85rem; }
.card .big { font-size: 2.1rem; font-weight: 650; line-height: 1.2; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.card .big small { font-size: .95rem; font-weight: 500; letter-spacing: 0; color: var(--soft); }
.card .foot { color: var(--soft); font-size: .82rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; max-width: 820px; } .nowrap { white-space: nowrap; }
.about { max-width: none; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
td.text, th.text { text-align: left; white-space: normal; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; font-size: .9rem; margin: 10px 0; }
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.lane { display: grid; grid-template-columns: 112px 1fr 92px; gap: 12px; align-items: center; margin: 10px 0; font-size: .9rem; }
.lane .sum { text-align: right; font-variant-numeric: tabular-nums; color: var(--soft); }
.lane .of { color: var(--soft); font-size: .8rem; display: block; line-height: 1.2; }
.stack { display: flex; height: 30px; border-radius: 5px; overflow: hidden; background: var(--idle); }
.stack i { display: block; height: 100%; box-shadow: inset -1px 0 0 var(--paper); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 12px 0 4px; font-size: .85rem; color: var(--soft); }
.legend b { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.figure { margin: 6px 0 10px; }
svg.chart { width: 100%; height: auto; display: block; font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
svg.narrow { display: none; }
svg text { fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .label { fill: var(--ink); font-weight: 550; }
svg .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); } svg .mark { stroke: var(--ink); stroke-dasharray: 3 3; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line.accent { stroke: var(--accent); } svg .line.second { stroke: var(--second); } svg .line.roof { stroke: var(--soft); }
svg .area.accent { fill: var(--accent-soft); } svg .area.second { fill: var(--second-soft); }
svg .dot { stroke: var(--paper); stroke-width: 1.5; }
.fill-accent { fill: var(--accent); background: var(--accent); } .fill-second { fill: var(--second); background: var(--second); }
STAGES
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(280px, 1fr)); gap: 14px; margin: 12px 0; }
.pictures figure { margin: 0; } .pictures img { width: 100%; height: auto; border-radius: 8px; display: block; background: var(--card); }
.pictures figcaption { margin-top: 4px; overflow-wrap: anywhere; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; padding: 4px 0; }
[hidden] { display: none !important; }
@media (max-width: 700px) {
  main { padding: 20px 16px 48px; } h2 { margin-top: 38px; }
  svg.wide { display: none; } svg.narrow { display: block; font-size: 12px; }
  .lane { grid-template-columns: 1fr auto; gap: 4px 12px; } .lane .stack { grid-column: 1 / -1; grid-row: 2; }
  dl.facts { grid-template-columns: 1fr; gap: 0; } dl.facts dd { margin-bottom: 8px; }
  table { font-size: .8rem; } th, td { padding: 6px 4px; } .cards { grid-template-columns: 1fr 1fr; gap: 10px; }
  .card { padding: 12px 14px; } .card .big { font-size: 1.6rem; } .card:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .pictures { grid-template-columns: 1fr 1fr; gap: 10px; }
}
@media print {
  :root { color-scheme: light; } main { max-width: none; padding: 0; } button, .choice { display: none; }
  h2 { break-after: avoid; } .figure, .card, table, .lane, .pictures figure { break-inside: avoid; } body { font-size: 11pt; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""

_DARK = """
  --paper: #0f1216; --card: #171b21; --ink: #e8ebef; --soft: #9aa4b0; --line: #2a3038; --accent: #6ea8ff; --accent-soft: #6ea8ff30;
  --second: #f0a04b; --second-soft: #f0a04b2b; --good: #57c375; --bad: #ff7b72;
  --read: #8cc7e6; --decode: #5aa6d8; --prepare: #3a7fb8; --copy: #77818f; --trunk: #9a80ea; --proposals: #d676c2; --heads: #f0975a;
  --network: #9a80ea; --post: #5fbd8b; --report: #3e7d5d; --write: #dcb94a; --waiting: #434c57; --other: #2b323a; --idle: #20262d;
"""

STAGES = (
    "read",
    "decode",
    "prepare",
    "copy",
    "trunk",
    "proposals",
    "heads",
    "network",
    "post",
    "report",
    "write",
    "waiting",
    "other",
    "idle",
)
"""The stages that have a colour."""

SCRIPT = """
const root = document.documentElement;
const themes = ["auto", "light", "dark"];
document.querySelector("#theme").addEventListener("click", event => {
  const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
  if (next === "auto") { delete root.dataset.theme; } else { root.dataset.theme = next; }
  event.target.textContent = "Colours: " + next;
});
for (const button of document.querySelectorAll("[data-shows]")) {
  button.addEventListener("click", () => {
    for (const other of button.parentElement.children) {
      const chosen = other === button;
      other.setAttribute("aria-pressed", chosen);
      document.getElementById(other.dataset.shows).hidden = !chosen;
    }
  });
}
"""


def style_sheet() -> str:
    """Returns the whole style sheet."""
    stages = "\n".join(f".fill-{stage} {{ fill: var(--{stage}); background: var(--{stage}); }}" for stage in STAGES)
    return CSS.replace("DARK", _DARK).replace("STAGES", stages)

"""How the gallery looks: colours for light and dark, a bar of controls that stays in sight, a grid of pictures, one picture at large."""

from __future__ import annotations

_LIGHT = """
  --paper: #ffffff; --card: #f6f7f9; --ink: #16191d; --soft: #5b6470; --line: #dde1e6; --accent: #1f6feb;
  --only-a: #d9480f; --only-b: #1f6feb; --both: #7a8490;
"""
_DARK = """
  --paper: #0f1216; --card: #171b21; --ink: #e8ebef; --soft: #9aa4b0; --line: #2a3038; --accent: #6ea8ff;
  --only-a: #ff8a4c; --only-b: #6ea8ff; --both: #98a2ae;
"""

_RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; color-scheme: light dark; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.45;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
[hidden] { display: none !important; }
header { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--line); padding: 12px 20px; }
h1 { font-size: 1.15rem; margin: 0; overflow-wrap: anywhere; }
.top { display: flex; flex-wrap: wrap; gap: 2px 16px; align-items: baseline; justify-content: space-between; }
#count { color: var(--soft); font-size: .9rem; font-variant-numeric: tabular-nums; }
.row { display: flex; flex-wrap: wrap; gap: 8px 18px; align-items: center; margin-top: 10px; font-size: .88rem; }
.row label { display: inline-flex; gap: 8px; align-items: center; color: var(--soft); }
input[type=range] { width: 180px; accent-color: var(--accent); }
input[type=checkbox] { accent-color: var(--accent); width: 16px; height: 16px; margin: 0; }
input[type=search], select { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 5px 10px; max-width: 200px; }
output { color: var(--ink); font-variant-numeric: tabular-nums; min-width: 2.4em; }
.chips { display: flex; flex-wrap: wrap; gap: 6px; max-height: 92px; overflow-y: auto; }
button { font: inherit; font-size: .85rem; color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 999px;
  padding: 3px 12px; cursor: pointer; min-height: 30px; }
button[aria-pressed=false] { color: var(--soft); background: none; text-decoration: line-through; }
.modes button[aria-pressed=false] { text-decoration: none; }
.modes button[aria-pressed=true] { color: var(--paper); background: var(--ink); border-color: var(--ink); }
.modes { display: flex; flex-wrap: wrap; gap: 6px; }
button:focus-visible, figure:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.n { color: var(--soft); margin-left: 6px; font-variant-numeric: tabular-nums; }
main { padding: 18px 20px 64px; }
#grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); align-items: end; }
figure { margin: 0; cursor: zoom-in; min-width: 0; }
.view { position: relative; background: var(--card); border-radius: 8px; overflow: hidden; }
.view img { display: block; width: 100%; height: 100%; }
.view svg { position: absolute; inset: 0; width: 100%; height: 100%; }
figcaption { display: flex; gap: 10px; justify-content: space-between; font-size: .85rem; margin-top: 4px; color: var(--soft);
  font-variant-numeric: tabular-nums; }
figcaption b { font-weight: 500; color: var(--ink); overflow-wrap: anywhere; }
svg rect, svg path, svg line { vector-effect: non-scaling-stroke; fill: none; stroke-width: 2; }
svg .halo { stroke: #000; stroke-opacity: .55; stroke-width: 4; }
svg .mask { fill-opacity: .38; stroke: #fff; stroke-width: 1; fill-rule: evenodd; }
svg .truth { stroke: #fff; stroke-dasharray: 6 4; }
svg line { stroke-width: 3; stroke-linecap: round; }
svg .joint { stroke: #fff; stroke-width: 1; vector-effect: non-scaling-stroke; }
svg text { font-family: inherit; font-weight: 600; fill: #fff; paint-order: stroke; stroke: #000; stroke-opacity: .8;
  stroke-linejoin: round; }
.only-a { --tone: var(--only-a); } .only-b { --tone: var(--only-b); } .both { --tone: var(--both); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); }
.legend i { display: inline-block; width: 12px; height: 12px; border: 2.5px solid var(--tone); border-radius: 3px; margin-right: 6px;
  vertical-align: -2px; }
#empty { color: var(--soft); padding: 48px 0; text-align: center; }
dialog { border: 0; padding: 0; width: 100vw; height: 100vh; max-width: none; max-height: none; background: var(--paper);
  color: var(--ink); }
dialog .bar { display: flex; gap: 10px; align-items: center; padding: 10px 16px; border-bottom: 1px solid var(--line); }
dialog .bar b { flex: 1; overflow-wrap: anywhere; font-weight: 600; }
dialog .large { display: grid; grid-template-columns: minmax(0, 1fr) 300px; height: calc(100vh - 52px); }
dialog .stage { display: grid; place-items: center; padding: 14px; min-width: 0; min-height: 0; overflow: hidden; }
dialog .list { border-left: 1px solid var(--line); overflow-y: auto; padding: 8px 14px; font-size: .85rem; }
dialog table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
dialog td { padding: 4px 6px; border-bottom: 1px solid var(--line); } dialog td:last-child { text-align: right; }
dialog tr:hover { background: var(--card); }
svg .faded { opacity: .15; }
@media (max-width: 700px) {
  header { position: static; padding: 12px 14px; } main { padding: 14px 14px 48px; } input[type=range] { width: 130px; }
  #grid { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
  dialog .large { grid-template-columns: 1fr; grid-template-rows: minmax(0, 3fr) minmax(0, 2fr); }
  dialog .list { border-left: 0; border-top: 1px solid var(--line); }
}
@media print { header { position: static; } .row { display: none; } }
"""


def style_sheet() -> str:
    """Returns the whole style sheet."""
    return f":root {{ {_LIGHT} }} @media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n{_RULES}"

"""The style sheet of a trace's page: narrow and wide, light and dark screens."""

CSS = """
.headway { color-scheme: light dark; --paper: #fff; --ground: #f4f6f9; --ink: #1b2430;
  --soft: #56616f; --line: #c9d1db; --plus: #1f5fbf; --minus: #b8560c; --good: #1a7f4b;
  --bad: #c22a2a; color: var(--ink); background: var(--ground); padding: 1rem;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  .headway { --paper: #171d26; --ground: #10151c; --ink: #e7ecf2; --soft: #a3afbd;
    --line: #3a4554; --plus: #6fa8ff; --minus: #ff9d4d; --good: #5fd399; --bad: #ff8080; }
}
.headway * { box-sizing: border-box; }
.headway .inner { max-width: 76rem; margin: 0 auto; }
.headway h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
.headway h2 { font-size: 1.2rem; margin: 2rem 0 .25rem; }
.headway h3 { font-size: 1rem; margin: 1.25rem 0 .5rem; }
.headway p { margin: .25rem 0 .75rem; max-width: 46rem; }
.headway .soft { color: var(--soft); overflow-wrap: anywhere; }
.headway .good { color: var(--good); font-weight: 600; }
.headway .bad { color: var(--bad); font-weight: 600; }
.headway code { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .875em; overflow-wrap: anywhere; }
.headway figure { margin: 0; }
.headway figcaption { font-size: .875rem; }
.headway figcaption span { color: var(--soft); white-space: nowrap; }
.headway .strip figcaption > * { display: block; }
.headway .strip { list-style: none; display: flex; flex-wrap: wrap; gap: .75rem .5rem; margin: 0;
  padding: 0; align-items: stretch; }
.headway .strip li { display: flex; align-items: center; gap: .5rem; }
.headway .strip li + li::before { content: "\\2192"; color: var(--soft); font-size: 1.25rem; }
.headway .beside { display: flex; flex-wrap: wrap; gap: .5rem; height: 100%; }
.headway .strip figure { background: var(--paper); border: 1px solid var(--line);
  border-radius: .5rem; padding: .6rem .5rem; min-width: 5.5rem; display: flex;
  flex-direction: column; justify-content: space-between; align-items: center; gap: .4rem;
  text-align: center; }
.headway .grid { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.headway .card { background: var(--paper); border: 1px solid var(--line); border-radius: .5rem;
  padding: 1rem; min-width: 0; }
.headway .scroll { overflow-x: auto; }
.headway .scroll:focus-visible, .headway summary:focus-visible { outline: 2px solid var(--plus);
  outline-offset: 2px; }
.headway svg { display: block; }
.headway svg.none { position: absolute; }
.headway svg.large { max-width: 100%; height: auto; margin: .5rem auto; }
.headway .legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; align-items: center;
  font-size: .875rem; margin: .5rem 0 .75rem; }
.headway .legend span { display: inline-flex; align-items: center; gap: .4rem; }
.headway text { font: 11px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: var(--ink); text-anchor: middle; }
.headway text.row { text-anchor: end; }
.headway text.column { text-anchor: start; }
.headway text.on { fill: var(--paper); }
.headway .paper { fill: var(--paper); }
.headway .p { fill: var(--plus); }
.headway .m { fill: var(--minus); }
.headway .nan { fill: var(--bad); }
.headway .frame:not(.hatch) { fill: none; }
.headway .frame { stroke: var(--line); pointer-events: none; }
.headway .line { stroke: var(--soft); stroke-opacity: .55; fill: none; }
.headway svg title ~ * { pointer-events: none; }
.headway details { margin-top: .5rem; font-size: .875rem; }
.headway summary { cursor: pointer; color: var(--plus); padding: .25rem 0; }
.headway table { border-collapse: collapse; font-size: .875rem; }
.headway th, .headway td { padding: .25rem .5rem; border-bottom: 1px solid var(--line);
  text-align: right; vertical-align: top; }
.headway th { font-weight: 600; }
.headway .numbers { font-variant-numeric: tabular-nums; white-space: nowrap; }
.headway .steps { width: 100%; }
.headway .steps th, .headway .steps td { text-align: left; }
@media (max-width: 45rem) {
  .headway { padding: .75rem; }
  .headway .card { padding: .75rem; }
  .headway .steps thead { display: none; }
  .headway .steps tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .headway .steps th, .headway .steps td { display: block; border: 0; padding: 0; }
  .headway .steps th, .headway .steps td:nth-child(2) { display: inline; margin-right: .5rem; }
}
"""

"""The look of the public page: plain, readable, printable, with nothing loaded from elsewhere."""

STYLE = """<style>
body { font: 16px/1.55 Georgia, "Times New Roman", serif; color: #1c1c1c; background: #fff; margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ccc; padding-bottom: .2rem; }
.lead { font-size: 1.1rem; color: #444; margin-top: 0; }
.small { font-size: .85rem; color: #555; overflow-wrap: anywhere; }
.formula { font-family: "Cambria Math", "STIX Two Math", Georgia, serif; background: #f5f5f2; padding: .6rem .8rem; }
.wide { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font: 14px/1.45 system-ui, "Segoe UI", Arial, sans-serif; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top; border-bottom: 1px solid #e4e4e0; }
th { font-weight: 600; border-bottom: 1px solid #999; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
li { margin: .25rem 0; }
</style>"""

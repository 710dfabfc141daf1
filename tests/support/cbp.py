"""A tiny County Business Patterns: released tables by area, statistic and NAICS level, under the programme's names."""

from tests.support.published import Table, drawn

INDUSTRIES = {
    "naics2": ("11", "31-33"),
    "naics3": ("113", "311", "321"),
    "naics4": ("1131", "3111", "3211"),
    "naics5": ("11311", "31111", "32111"),
    "naics6": ("113110", "311110", "321110", "321111"),
}
SIZES = ("0-4", "5-9", "10-19", "20-49", "50-99", "100-249", "250-499", "500-999", "1000+")
FORMS = ("C", "P", "S")
STATISTICS = ("est", "emp", "qp1", "ap")
AREAS = {
    "us": ("nation", ("US",)),
    "st": ("state", ("01", "02", "06")),
    "co": ("county", ("01001", "01003", "06037")),
    "msa": ("cbsa", ("19300", "33860")),
    "zip": ("zip", ("00501", "10001")),
}


def tables() -> dict[str, Table]:
    """Every table that conf/products/cbp.yaml names."""
    made: dict[str, Table] = {}
    for area, (level, areas) in AREAS.items():
        for statistic in STATISTICS:
            for industry in ("total", *INDUSTRIES):
                if area == "zip" and industry != "total" and (industry, statistic) != ("naics2", "est"):
                    continue
                codes = {level: areas} | ({} if industry == "total" else {industry: INDUSTRIES[industry]})
                if area in ("us", "st"):
                    codes |= {"form": FORMS, "size": SIZES}
                elif statistic == "est" and area in ("co", "zip") and (area, industry) != ("zip", "total"):
                    codes |= {"size": SIZES}
                if area == "st":
                    coarse = {key: of for key, of in codes.items() if key not in ("form", "size")}
                    made[f"st_{statistic}_{industry}_all"] = drawn(coarse, len(made), 40.0)
                made[f"{area}_{statistic}_{industry}"] = drawn(codes, len(made), 3.0 if statistic == "est" else 60.0)
    return made

"""The pictures of docs/img, from a real run: `python docs/screenshots.py [FOLDER]` (about two minutes).

Runs, evaluates the loss landscape, writes the report, opens it in headless Chromium at desktop and phone
width, in light and dark, and cuts the pictures out. Needs the extra `dev` and a Chromium on the PATH.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from manymodes.cli import main

IMG = Path(__file__).parent / "img"
COMPARE = "--strategies finetune,ewc,lwf,er,mota,mota:modes=3,multitask --stream digits --seeds 0,1,2"
DESKTOP, PHONE = (1180, 860), (390, 844)
# name: what is cut out (from the first to the last of these), at which width, in which theme
SHOTS = {
    "overview": (["header.top", "#e0-comparison .caption"], DESKTOP, ("light", "dark")),
    "progress": (["#e0-figure-progress"], DESKTOP, ("light",)),
    "matrix": (["#e0-figure-matrix", "#e0-figure-tasks"], DESKTOP, ("light",)),
    "modes": (["#e0-figure-moved", "#e0-figure-surface"], DESKTOP, ("light",)),
    "landscape": (["#e0-figure-landscape"], DESKTOP, ("light",)),
    "tradeoff": (["#e0-tradeoff"], DESKTOP, ("light",)),
    "drift": (["#e0-figure-against"], DESKTOP, ("light",)),
    "phone": (["header.top", "#e0-comparison .caption"], PHONE, ("dark",)),
}
SETTLE = """async () => {
    for (const chart of document.querySelectorAll(".chart")) {
        chart.scrollIntoView({behavior: "instant", block: "center"});
        await new Promise((done) => setTimeout(done, 60));
    }
    window.scrollTo(0, 0);
}"""
DRAWN = (
    "() => [...document.querySelectorAll('.chart')].every(c => c.dataset.drawn || c.closest('figure').hidden)"
)


def runs(folder):
    """What the pictures show."""
    for words in (["compare", *COMPARE.split(), "--out", str(folder)], ["landscape", str(folder)]):
        assert main(words) == 0
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


def shoot(report):
    """Every picture."""
    IMG.mkdir(exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (selectors, (width, height), themes) in SHOTS.items():
            for theme in themes:
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                    device_scale_factor=2,
                    reduced_motion="reduce",
                )
                page.goto(report.resolve().as_uri())
                page.add_style_tag(content=".contents,.picker{position:static!important}")
                page.evaluate(SETTLE)
                page.wait_for_function(DRAWN)
                page.wait_for_timeout(300)
                boxes = [page.locator(selector).bounding_box() for selector in selectors]
                picture = page.screenshot(full_page=True, clip=_around(boxes, width))
                suffix = f"-{theme}" if len(themes) > 1 else ""
                _save(picture, IMG / f"report-{name}{suffix}.webp", most=1400 if width > 500 else 780)
                page.close()
        browser.close()


def _around(boxes, width):
    top = max(0, min(box["y"] for box in boxes) - 12)
    bottom = max(box["y"] + box["height"] for box in boxes) + 12
    left = max(0, min(box["x"] for box in boxes) - 24)
    right = min(width, max(box["x"] + box["width"] for box in boxes) + 24)
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}


def _save(picture, path, most):
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    if image.width > most:
        image = image.resize((most, round(image.height * most / image.width)), Image.Resampling.LANCZOS)
    image.save(path, quality=82, method=6)
    print(f"{path.name}: {image.width} x {image.height}, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        shoot(runs(Path(sys.argv[1] if len(sys.argv) > 1 else made)))

"""The web page: what is sent, and what people see and do with it in a real browser."""

import re
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from tests.guard.test_decision import rows as decided_rows
from tests.guard.test_rows import odd, people
from tests.helpers.guards import labelled, noise
from tests.helpers.samples import make_set
from tests.helpers.service import png, running

import outfield as of
from outfield.serve import Keep, Limits

PAGE = resources.files("outfield.serve") / "page"


@pytest.fixture(scope="module")
def service(files):
    with running(files["fused"], files["ssd"]) as found:
        yield found


def test_nothing_comes_from_elsewhere_and_no_script_is_in_the_page():
    for part in PAGE.iterdir():
        text = part.read_text("utf-8")
        assert {*re.findall(r"(?:https?:)?//[\w.]+\.\w+", text)} <= {"http://www.w3.org"}, part.name
        assert not re.search(r"innerHTML|eval\(|\son\w+=|\sstyle=|<style|<script(?![^>]*src=)", text), part.name


def test_every_part_is_served_with_its_type(service):
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for part in PAGE.iterdir():
        path = "/" if part.name == "page.html" else f"/{part.name}"
        answer = service.client.get(path)
        assert answer.headers["content-type"].startswith(kinds[part.name.rpartition(".")[2]])
        assert answer.content == part.read_bytes()
        assert service.client.head(path).status_code == 200


@pytest.fixture
def page(opened, service, request):
    """The page on a screen of some size."""
    with opened(service, *getattr(request, "param", ()), quiet=True) as found:
        yield found


def upload(page, images):
    given = [{"name": f"{i}.png", "mimeType": "image/png", "buffer": png(one)} for i, one in enumerate(images)]
    page.set_input_files("#files", given)
    page.locator("#images .ok, #images .ood").nth(len(images) - 1).wait_for()


class TestInABrowser:
    def test_verdicts_are_the_guards_own(self, page, files):
        assert not page.locator("#review, #keeps").nth(0).is_visible()
        assert not page.locator("#review, #keeps").nth(1).is_visible()
        images = [*labelled(3, 5).images, *noise(2)]
        expected = of.Guard.load(files["fused"], device="cpu")(images)
        upload(page, images)
        words = page.locator("#images .word").all_inner_texts()
        assert words == ["OOD" if one.is_ood else "ID" for one in expected]
        text = page.locator("#images > li").nth(4).inner_text()
        assert expected[4].class_name in text
        assert f"triggered by {expected[4].triggered_by}" in text
        assert page.locator("#scores .mark").count() == 5
        assert page.locator("#scores .cut").count() == 1
        assert "5 images checked, 2 OOD" in page.locator("#says").inner_text()

    def test_the_slider_flips_images_and_says_what_is_kept(self, page, files):
        guard = of.Guard.load(files["fused"], device="cpu")
        upload(page, [*labelled(2, 5).images, *noise(1)])
        assert page.locator("#images .flipped").count() == 0
        page.locator("#threshold").focus()
        page.keyboard.press("Home")
        assert page.locator("#images .word").all_inner_texts() == ["OOD"] * 3
        assert page.locator("#images .flipped").count() == 2
        assert "was ID" in page.locator("#images > li").first.inner_text()
        assert page.locator("#scores-say").inner_text().startswith("0.0 %")
        page.keyboard.press("End")
        assert page.locator("#scores-say").inner_text().startswith("100.0 %")
        page.locator("#reset").press("Enter")
        kept = float((guard.threshold.reference <= guard.threshold.value).double().mean())
        assert page.locator("#scores-say").inner_text().startswith(f"{100 * kept:.1f} %")
        assert page.locator("#images .flipped").count() == 0

    def test_another_guard_judges_the_same_images_anew(self, page, files):
        image = labelled(1, 5).images[0]
        upload(page, [image])
        page.select_option("#guard", "ssd")
        score = of.Guard.load(files["ssd"], device="cpu")(image).score
        page.get_by_text(f"score {np.format_float_positional(score, 4, fractional=False)}").wait_for()
        assert "This guard knows images of " in page.locator("#about").inner_text()
        assert not page.locator("#members").is_visible()
        page.locator("#how summary").press("Enter")
        assert page.locator("#members").inner_text() == "SSD"

    def test_what_is_broken_is_said(self, page):
        image = png(labelled(1, 5).images[0])
        files = {"a.png": b"no image", "notes.txt": b"x", "good.png": image}
        kinds = {"notes.txt": "text/plain"}
        given = [{"name": n, "mimeType": kinds.get(n, "image/png"), "buffer": one} for n, one in files.items()]
        page.set_input_files("#files", given)
        page.get_by_text("1 image checked, 0 OOD; 2 could not be checked.").wait_for()
        texts = page.locator("#images > li").all_inner_texts()
        assert "a.png is truncated, or is not an image" in texts[0]
        assert "notes.txt" in texts[1]
        assert "This file is not an image." in texts[1]

    def test_images_that_are_too_much_together_are_sent_one_by_one(self, opened, files):
        with running(files["ssd"], limits=Limits(images=2)) as service, opened(service) as page:
            upload(page, [*labelled(3, 5).images])
            page.get_by_text("3 images checked").wait_for()

    def test_examples_traffic_and_the_alarm(self, page, service):
        page.locator("#examples").press("Enter")
        page.locator("#images .ok, #images .ood").nth(7).wait_for()
        page.locator("#examples").press("Enter")
        page.locator("#images .ok, #images .ood").nth(15).wait_for()
        page.locator("#alarm.rings").wait_for()
        told = service.client.get("/v1/traffic").json()
        assert told["alarm"]
        page.locator("#numbers").get_by_text(
            f"{told['samples']}{told['ood']} OOD", exact=True
        ).wait_for()  # within two seconds
        assert page.locator("#p-values .even").count() == 1
        page.locator("#clear").press("Enter")
        assert page.locator("#images > li").count() == 0

    @pytest.mark.parametrize("page", [(360, 740)], indirect=True)
    def test_a_phone_needs_no_sideways_scrolling(self, page):
        upload(page, [*labelled(2, 5).images])
        box = page.locator("main").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        for name in ("#choose", "#camera", "#threshold", "#reset"):
            found = page.locator(name).bounding_box()
            assert found["x"] >= 0
            assert found["x"] + found["width"] <= 360

    def test_the_keyboard_reaches_everything(self, page):
        reached = []
        for _ in range(8):
            page.keyboard.press("Tab")
            reached.append(page.locator(":focus").get_attribute("id"))
        assert {"guard", "choose", "camera", "examples", "threshold"} <= set(reached)

    def test_a_picture_of_the_camera(self, page):
        page.locator("#camera").press("Enter")
        page.locator("#viewfinder").wait_for()
        page.locator("#shoot").press("Enter")
        page.locator("#images .ok, #images .ood").first.wait_for()
        page.locator("#close").press("Enter")
        assert not page.locator("#viewfinder").is_visible()

    def test_the_members_can_be_read(self, page, files):
        upload(page, [noise(1)[0]])
        page.locator("#images summary").press("Enter")
        guard = of.Guard.load(files["fused"], device="cpu")
        assert page.locator("#images details li").count() == len(guard.members)
        page.locator("#threshold").focus()
        page.keyboard.press("End")
        assert page.locator("#images details li").first.is_visible()  # moving the threshold closes nothing

    def test_a_paste_and_a_drop(self, page):
        for kind, field in (("paste", "clipboardData"), ("drop", "dataTransfer")):
            page.evaluate(
                """([kind, field, bytes]) => {
                    const data = new DataTransfer();
                    data.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
                    const made = kind === "paste" ? ClipboardEvent : DragEvent;
                    document.dispatchEvent(new made(kind, { [field]: data, bubbles: true, cancelable: true }));
                }""",
                [kind, field, [*png(labelled(1, 5).images[0])]],
            )
        page.locator("#images .ok, #images .ood").nth(1).wait_for()


def test_a_token_is_asked_for(opened, files):
    with running(files["ssd"], token="secret") as service, opened(service) as page:
        page.locator("#door").wait_for()
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.get_by_text("This is not the token").wait_for()
        page.fill("#token", "secret")
        page.keyboard.press("Enter")
        page.locator("#guard option").first.wait_for(state="attached")
        assert not page.locator("#door").is_visible()


def test_a_guard_of_rows_is_asked_for_rows(opened, files, row_guards):
    frame = pd.concat([people(9, 1), odd(2)], ignore_index=True)
    frame.loc[0, "town"] = frame.loc[1, "town"]
    guards = row_guards / "people.guard", files["ssd"], row_guards / "plain.guard"
    expected = of.Guard.load(guards[0])(frame)
    with running(*guards) as service, opened(service) as found:
        found.get_by_text("This guard knows rows of a table: size, weight, town.").wait_for()
        assert found.locator("#place").inner_text() == "POST /v1/check?guard=people"
        for hidden in ("#drop", "#camera", "#choose", "#viewfinder"):
            assert not found.locator(hidden).is_visible()
        assert found.locator("#rows").input_value() == "size,weight,town\n"
        for text, said in (
            ("size,town\n1,x", "the table lacks column 'weight'"),
            ('size,weight,town\n1,heavy,"a, b"\n1,94103,Ulm', "1 row checked, 1 OOD; 1 could not be checked."),
            ("size,weight,town\n1,94107,Ulm", "weight 94107"),  # told from the row before
            ("size,size,weight,town\n1,2,3,x", "the first line names 'size' twice"),
            ('size,weight,town\n1,2,"x', "A quotation mark is not closed"),
        ):
            found.fill("#rows", text)
            found.click("#check-rows")
            found.get_by_text(said).wait_for()
        found.fill("#rows", frame[["town", "size", "weight", "group"]].to_csv(index=False))
        found.click("#check-rows")
        found.get_by_text(f"11 rows checked, {int(expected.is_ood.sum())} OOD").wait_for()
        words = found.locator("#images .word").all_inner_texts()
        assert words == ["OOD" if one.is_ood else "ID" for one in expected]
        assert "because of " in found.locator("#images .ood").last.inner_text()
        files = {
            "a.csv": frame.to_csv(index=False),
            "b.csv": "size\n1\n",
            "c.csv": "size,weight,town\n1,heavy,x\n1,2\n",
        }
        given = [{"name": name, "mimeType": "text/csv", "buffer": text.encode()} for name, text in files.items()]
        picture = {"name": "d.png", "mimeType": "image/png", "buffer": b""}
        found.set_input_files("#files", [*given, picture])
        found.get_by_text(f"11 rows checked, {int(expected.is_ood.sum())} OOD; 4 could not be checked.").wait_for()
        said = "\n".join(found.locator("#images .failed").all_inner_texts())
        for name in ("b.csv", "c.csv row 1", "c.csv row 2", "d.png", "'heavy' here, which is no number", "2 cells"):
            assert name in said
        assert "of held-out ID rows lie" in found.locator("#scores-say").inner_text()
        found.select_option("#guard", "ssd")
        found.locator("#choose").wait_for()
        assert not found.locator("#table").is_visible()
        assert found.locator("#images > li").count() == 0
        found.select_option("#guard", "plain")
        rows = make_set(n=2, seed=3).features
        found.fill("#rows", "\n".join(",".join(map(str, row)) for row in rows.tolist()))
        found.click("#check-rows")
        found.get_by_text("2 rows checked").wait_for()
        score = float(of.Guard.load(guards[2])(rows).scores[0])
        assert (
            f"score {np.format_float_positional(score, 4, fractional=False)}" in found.locator("#images").inner_text()
        )
        found.fill("#rows", "1,2")
        found.click("#check-rows")
        found.get_by_text("it has 2 numbers; this guard takes").wait_for()


def test_what_is_kept_is_said_and_reviewed(opened, files, tmp_path):
    settings = {"keep": Keep(tmp_path, sample=1.0), "token": "secret"}
    with running(files["ssd"], **settings) as service, opened(service, 360, 740) as page:
        service.check(*map(png, [*labelled(2, 5).images, *noise(1)]))
        page.fill("#token", "secret")
        page.keyboard.press("Enter")
        page.get_by_text(
            "This service keeps what this guard refuses and a random 100.0 % of all that is sent"
        ).wait_for()
        items = page.locator("#queue > li")
        items.nth(2).wait_for()
        for _ in range(300):  # the page runs no text as code, so that it cannot wait by itself
            widths = items.locator("img").evaluate_all("(all) => all.map((one) => one.naturalWidth)")
            if widths == [16, 16, 16]:
                break
            page.wait_for_timeout(100)
        assert widths == [16, 16, 16]
        assert items.locator(".verdict > :last-child").all_inner_texts() == ["ID", "ID", "OOD"]
        items.nth(0).locator("select").select_option(label="down")
        items.nth(0).get_by_role("button", name="Known", exact=True).press("Enter")
        items.nth(0).get_by_text("Reviewed: known, down").wait_for()
        items.nth(2).get_by_role("button", name="Unknown").press("Enter")
        items.nth(2).get_by_text("Reviewed: unknown").wait_for()
        folder = service.service.models["ssd"].queue.folder
        found = [folder.item(own)["review"] for own in folder.ids()]
        told = [one and (one["known"], one["class"]) for one in found]
        assert told == [(True, "down"), None, (False, None)]
        page.locator("#review-again").press("Enter")
        page.get_by_text("3 kept, 2 reviewed; of the random sample 2 of 3").wait_for()
        assert items.count() == 1
        page.select_option("#review-show", "all")
        page.get_by_text("Reviewed: known, down").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_accepted_answers_are_counted_and_marked(opened, tmp_path):
    settings = {"detector": "SSD", "accuracy": 0.9, "device": "cpu"}
    guard = of.Guard.build_rows(decided_rows(600, 1), decided_rows(1500, 2), **settings)
    guard.save(tmp_path / "a.guard")
    new = decided_rows(30, 3)
    new.features[:5] += 9
    expected = ["OOD" if one.is_ood else "accepted" if one.accept else "unsure" for one in guard(new)]
    assert {*expected} == {"OOD", "accepted", "unsure"}
    with running(tmp_path / "a.guard") as service, opened(service) as found:
        assert found.locator("#made").text_content().endswith("The detector:")
        cells = np.concatenate([new.features.numpy(), new.logits.numpy()], 1).tolist()
        found.fill("#rows", "\n".join(",".join(map(str, row)) for row in cells))
        found.click("#check-rows")
        found.get_by_text(
            f"30 rows checked, {expected.count('accepted')} accepted, {expected.count('OOD')} OOD."
        ).wait_for()
        assert found.locator("#images .word").all_inner_texts() == expected

"""The first minutes: a key and a model, examples, workflows, an invitation, an assistant with a skill."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from tests.e2e.tasks.people import BEN, Office, Person, Way, ways
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]

NAME = re.compile("^name", re.IGNORECASE)


@ways()
async def test_a_key_is_entered_and_a_model_is_chosen_and_named_in_the_composer(
    office: Office, way: Way
) -> None:
    """Task 2: without a restart; new conversations use the chosen model, and the composer names another."""
    name = "harbour" + re.sub(r"\W", "", way.id)
    for model in ("entered", "other"):
        office.play(ScriptedReply(text=f"From the {model} model."), name=f"{model}-{way.id}")
    async with office.answered_by(None), office.person(way) as me:
        await me.view("servers.title")
        await me.press(me.button("servers.add"))
        await me.choose(me.named("servers.vendor", me.dialog), "")
        await me.write(me.named("app.name", me.dialog), name)
        await me.write(me.named("app.address", me.dialog), f"{office.model.url}/v1")
        await me.write(me.named("app.key", me.dialog), "key-of-the-harbour")
        await me.press(me.button("servers.save", me.dialog))
        await expect(me.page.get_by_role("cell").get_by_text(name, exact=True)).to_be_visible()
        await choose_model(
            me, me.page.get_by_role("button", name=me.t("run.model")), f"{name}:scripted/entered-{way.id}"
        )
        await expect(me.page.get_by_text(me.t("servers.saved"))).to_be_visible()
        await me.command(me.t("sidebar.new"))
        await me.ask("Hello")
        await expect(me.page.get_by_text("From the entered model.")).to_be_visible()
        await me.command(me.t("sidebar.new"))
        chosen = me.page.get_by_role("button", name=me.t("models.choose"))
        await choose_model(me, chosen, f"{name}:scripted/other-{way.id}")
        await expect(chosen).to_contain_text("scripted/other")
        await me.ask("Hello")
        await expect(me.page.get_by_text("From the other model.")).to_be_visible()


async def choose_model(me: Person, button: Locator, model: str) -> None:
    await me.press(button.first)
    await me.write(me.dialog.get_by_role("searchbox"), model)
    # As it was typed, until the list has arrived and contains it.
    await me.press(me.dialog.get_by_role("button", name=model.partition("scripted/")[2]).first)


@ways()
async def test_a_new_person_sees_what_can_be_done_here(office: Office, way: Way) -> None:
    """The examples fit the tools and workflows of the assistant; one fills the message box."""
    async with office.http() as http:
        body = {"name": f"Talker {way.id}", "tools": {"enabled": False}}
        made = await http.post("/context/assistants", json=body)
    async with office.person(way) as me:
        examples = me.page.get_by_role("group", name=me.t("welcome.examples"))
        project = examples.get_by_role("button", name=re.compile("Create project|Projekt"))
        await expect(project).to_be_visible()
        await me.press(examples.get_by_role("button", name=me.t("welcome.list")))
        await expect(me.composer).to_have_value(re.compile("ls -la"))
        await me.view("assistant.list")
        row = me.page.get_by_role("main").get_by_role("listitem").filter(has_text=made.json()["name"])
        await me.press(row.get_by_role("button", name=me.t("assistant.begin")))
        await expect(examples.get_by_role("button", name=me.t("welcome.draw"))).to_be_visible()
        await expect(examples.get_by_role("button", name=me.t("welcome.list"))).to_have_count(0)


@ways()
async def test_a_workflow_is_started_by_its_form_and_by_a_command(office: Office, way: Way) -> None:
    """Task 25: each way ends in the same run, whose calls wait for approval."""
    async with office.person(way) as me:
        await me.press(me.page.get_by_role("button", name=me.t("workflow.title")).last)
        title = re.compile("^(Create project|Projekt anlegen)")
        await me.press(me.dialog.get_by_role("button", name=title).first)
        await me.write(me.dialog.get_by_role("textbox", name=NAME).first, "by-form")
        await me.press(me.button("workflow.start", me.dialog))
        await me.press(me.card.get_by_role("button", name=me.t("approval.approve")).first)
        await expect(me.page.get_by_text("by-form/README.md").first).to_be_visible()

        await me.command(me.t("sidebar.new"))
        await me.write(me.composer, "")
        await me.composer.press_sequentially("/create_p")
        await expect(me.page.get_by_role("option", name="create_project")).to_be_visible()
        await me.page.keyboard.press("Enter")
        await me.composer.press_sequentially("name=by-slash")
        await me.page.keyboard.press("Enter")
        await expect(me.dialog.get_by_role("textbox", name=NAME).first).to_have_value("by-slash")
        await me.press(me.button("workflow.start", me.dialog))
        await me.press(me.card.get_by_role("button", name=me.t("approval.approve")).first)
        await expect(me.page.get_by_text("by-slash/README.md").first).to_be_visible()


@ways()
async def test_a_workflow_is_started_in_plain_language(office: Office, way: Way) -> None:
    """Task 25: a model chooses the workflow and fills its form; the run starts when the person confirms."""
    filled = {"workflow": "create_project", "parameters": {"name": "by-words", "colour": "red"}}
    model = office.play(ScriptedReply(text=json.dumps(filled)))
    async with office.answered_by(model), office.person(way) as me:
        await me.press(me.page.get_by_role("button", name=me.t("workflow.title")).last)
        await me.write(me.dialog.get_by_role("searchbox"), "Begin a project that is called by-words, in red")
        await me.press(me.button("workflow.fromWords", me.dialog))
        await expect(me.dialog.get_by_role("textbox", name=NAME).first).to_have_value("by-words")
        # The form has no colour: what does not fit is named.
        await expect(me.dialog.get_by_role("alert")).to_contain_text("colour=red")
        await me.press(me.button("workflow.start", me.dialog))
        await me.press(me.card.get_by_role("button", name=me.t("approval.approve")).first)
        await expect(me.page.get_by_text("by-words/README.md").first).to_be_visible()
    (request,) = office.requests(model)
    assert "create_project" in str(request["messages"]) and "called by-words" in str(request["messages"])


@ways()
async def test_a_colleague_is_invited_by_a_link_and_reads_the_one_shared_conversation(
    office: Office, way: Way
) -> None:
    """Task 29: the link signs in once; the shared link shows the conversation without controls."""
    name = "linus" + re.sub(r"\W", "", way.id)
    conversation = await office.conversation(ScriptedReply(text="It is 40 t."))
    async with office.at(conversation, way) as me:
        await me.ask("How heavy is it?")
        await me.ended()
        await me.view("people.title")
        await me.press(me.button("people.invite"))
        await me.write(me.page.get_by_label(me.t("people.name"), exact=True), name)
        await me.press(me.button("people.create"))
        link = (await me.page.get_by_text(re.compile("#/invitation/")).inner_text()).strip()
    async with office.person(way, token=None) as guest:
        await guest.page.goto(link)
        await expect(guest.page.locator(".account")).to_be_attached()
        await guest.page.goto(f"{office.system.url}/#/read/{conversation}")
        await expect(guest.page.get_by_text("It is 40 t.")).to_be_visible()
        await expect(guest.composer).to_be_hidden()
    async with office.person(way, token=None) as late:
        await late.page.goto(link)
        await expect(late.page.get_by_role("alert")).to_contain_text(re.compile(r"\w{4}"))
        await expect(late.page.locator(".account")).to_have_count(0)


@ways()
async def test_a_conversation_is_shared_with_one_person_only(office: Office, way: Way) -> None:
    """Task 29: one colleague sees it, with the warning who can approve; another one finds it nowhere."""
    name = "linus" + re.sub(r"\W", "", way.id)
    title = f"Lifts {way.id}"
    conversation = await office.conversation(ScriptedReply(text="It is 40 t."), title=title)
    async with office.http() as http:
        made = await http.post("/context/keys", json={"user": name, "rights": ["chat", "approve"]})
    async with office.at(conversation, way) as me, office.at(conversation, way, token=BEN) as other:
        await me.ask("How heavy is it?")
        await other.ended()
        await me.press(me.page.get_by_role("main").get_by_role("button", name=me.t("conversation.actions")))
        await me.press(me.page.get_by_role("menuitem", name=me.t("share.open")))
        await me.choose(me.dialog.get_by_role("combobox"), "some")
        await me.press(me.dialog.get_by_role("checkbox", name=name, exact=True), "Space")
        await expect(me.dialog.get_by_role("note")).to_contain_text(me.t("share.means"))
        link = (await me.dialog.get_by_text(f"#/c/{conversation}").inner_text()).strip()
        await me.check(office.axe)
        await me.press(me.button("app.save", me.dialog))
        header = me.page.get_by_role("main").locator("header")
        await expect(header.get_by_role("img")).to_have_accessible_name(re.compile(f"ann, {name}"))
        # What is open ends, and the conversation is found nowhere.
        await expect(other.page.get_by_text("It is 40 t.")).to_have_count(0)
        await other.page.reload()
        await expect(other.page.locator(".account")).to_be_attached()
        await expect(other.page.get_by_text(title)).to_have_count(0)
    async with office.person(way, token=made.json()["key"]) as guest:
        await guest.page.goto(link)
        await expect(guest.page.get_by_text("It is 40 t.")).to_be_visible()
        await expect(guest.page.get_by_role("main").locator("header")).to_contain_text(title)


@ways()
async def test_an_assistant_gets_a_skill_and_is_used(office: Office, way: Way, tmp_path: Path) -> None:
    """Task 28: it is chosen for a conversation by its name, which that conversation then shows."""
    folder = tmp_path / "loads"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: loads\ndescription: Compute loads.\n---\nAdd them.\n")
    model, name = office.play(ScriptedReply(text="With the skill.")), f"Cranes {way.id}"
    async with office.http() as http:
        made = await http.post(
            "/context/assistants", json={"name": name, "model": model, "tools": {"enabled": True}}
        )
    async with office.person(way, at=f"assistants/{made.json()['id']}") as me:
        await me.named("assistant.addSkill").set_input_files(folder)
        await me.press(me.button("app.save"))
        await expect(me.page.get_by_text(me.t("assistant.saved")).first).to_be_visible()
        await me.view("assistant.list")
        row = me.page.get_by_role("main").get_by_role("listitem").filter(has_text=name)
        await me.press(row.get_by_role("button", name=me.t("assistant.begin")))
        await expect(me.page.get_by_text(name).last).to_be_visible()
        await me.ask("Compute.")
        await expect(me.page.get_by_text("With the skill.")).to_be_visible()
        await expect(me.page.get_by_role("main").get_by_text(name).first).to_be_visible()
    async with office.http() as http:
        stored = (await http.get(f"/context/assistants/{made.json()['id']}")).json()
    assert [file["path"] for file in stored["files"]] == [".claude/skills/loads/SKILL.md"]

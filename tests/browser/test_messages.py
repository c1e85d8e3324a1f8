"""Messages: peek with filters, bodies of every kind, send, receive and settle, schedule, move, purge."""

from __future__ import annotations

import re
import time

from playwright.sync_api import expect

from bendybus.client import encode


def test_messages_are_peeked_filtered_and_the_view_has_an_address(portal, visit):
    portal.send(
        "orders",
        120,
        partition_key=lambda number: f"key-{number}",
        application_properties=lambda number: {"number": number},
    )
    page = visit("messages?path=orders")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.click(".pager >> text=Next")
    expect(page).to_have_url(re.compile("from="))
    expect(page.locator("tbody tr")).to_have_count(50)
    page.goto(portal.url + "messages?path=orders")
    page.get_by_label("Text in body or properties").fill("number=77")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("orders-77")
    expect(page).to_have_url(re.compile("text=number%3D77"))
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(portal.url + "messages?path=orders&partition=3")
    expect(page.locator("tbody tr").first.locator("td").nth(1)).to_have_text("3")


def test_messages_of_all_partitions_are_listed_in_the_order_of_enqueueing(portal, visit):
    with portal.client() as client:
        sender = client.sender("orders")
        for number in range(60):
            sender.send([encode(b"x", message_id=f"m-{number:02}", partition_key=f"key-{number * 7 % 23}")])
            time.sleep(0.003)  # the times of two have to differ
    page = visit("messages?path=orders")
    expect(page.locator("tbody tr")).to_have_count(50)
    seen = page.locator("tbody tr td:nth-child(4)").all_inner_texts()
    page.click(".pager >> text=Next")
    expect(page.locator("tbody tr")).to_have_count(10)
    seen += page.locator("tbody tr td:nth-child(4)").all_inner_texts()
    assert seen == [f"m-{number:02}" for number in range(60)]
    assert len(set(page.locator("tbody tr td:nth-child(2)").all_inner_texts())) > 1


def test_a_body_is_shown_as_what_it_is(portal, visit):
    bodies = {
        "json": '{"name":"Zoë 李 🚌"}'.encode(),
        "xml": b"<a><b>1</b></a>",
        "bytes": bytes(range(40)),
    }
    with portal.client() as client:
        for name, body in bodies.items():
            client.sender("invoices").send([encode(body, message_id=name)])
    page = visit("messages?path=invoices")
    for name, shown in (
        ("json", '"name": "Zoë 李 🚌"'),
        ("xml", "  <b>1</b>"),
        ("bytes", "00000010  10 11 12"),
    ):
        page.locator("tr", has_text=name).locator("button").first.click()
        expect(page.locator("pre.body")).to_contain_text(shown)
        page.locator(".dialog:visible").get_by_role("button", name="Close").click()
        expect(page.locator("pre.body")).to_have_count(0)


def test_an_open_message_has_an_address(portal, visit):
    portal.send("orders", 3)
    page = visit("messages?path=orders&text=number")
    page.locator("tr", has_text="orders-1").locator("button").first.click()
    expect(page.locator("pre.body")).to_contain_text('"number": 1')
    expect(page).to_have_url(re.compile(r"text=number&message=\d+"))
    shared = page.url
    page.locator(".dialog:visible").get_by_role("button", name="Close").click()
    expect(page).not_to_have_url(re.compile("message="))
    page.goto(shared)
    expect(page.locator("pre.body")).to_contain_text('"number": 1')


def test_a_message_that_tries_to_inject_script_is_shown_and_nothing_more(portal, visit):
    evil = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{ 1 + 1 }}'
    with portal.client() as client:
        message = encode(
            evil.encode(),
            message_id=evil,
            subject=evil,
            partition_key="k",
            application_properties={evil: evil, "DeadLetterReason": evil},
        )
        client.sender("invoices").send([message, message])
        receiver = client.receiver("invoices")
        receiver.dead_letter(receiver.receive(1, timeout_s=5), evil, evil)
    page = visit("messages?path=invoices")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody button").first.click()
    expect(page.locator("pre.body")).to_contain_text("<script>window.hacked=1</script>{{ 1 + 1 }}")
    page.goto(portal.url + "dead-letters?path=invoices")
    expect(page.locator(".reason-list")).to_contain_text("onerror=")
    page.locator("tbody button").first.click()
    expect(page.locator("pre.body")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#content img").count() == 0


def test_a_message_is_sent_with_its_properties_and_many_at_once(portal, visit):
    page = visit("messages?path=orders")
    page.get_by_role("button", name="Send").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Body").fill('{"hello": "wörld"}')
    dialog.get_by_label("Message id").fill("m-1")
    dialog.get_by_label("Subject").fill("greeting")
    dialog.get_by_label("Partition key").fill("ada")
    dialog.get_by_label("Application properties").fill("region=eu\namount:=12.5")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(1)
    with portal.client() as client:
        receiver = client.receiver("orders")
        (message,) = receiver.receive(1, timeout_s=5)
        assert message.body.decode() == '{"hello": "wörld"}'
        assert (message.message_id, message.subject, message.partition_key) == ("m-1", "greeting", "ada")
        assert message.application_properties == {"region": "eu", "amount": 12.5}
        receiver.complete([message])
    page.get_by_role("button", name="Send").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Message id").fill("")
    dialog.get_by_label("How many").fill("1000")
    dialog.get_by_role("button", name="Send").click()
    expect(page.locator(".job")).to_contain_text("1,000 of 1,000")
    expect(page.locator(".job")).to_have_attribute("data-state", "done")


def test_a_template_of_ones_own_is_kept_in_this_browser(portal, visit):
    page = visit("messages?path=orders")
    page.get_by_role("button", name="Send").click()
    dialog = page.get_by_role("dialog", name="Send to orders")
    dialog.get_by_label("Body").fill('{"hello": 1}')
    dialog.get_by_label("Subject").fill("greeting")
    dialog.get_by_label("Application properties").fill("region=eu")
    dialog.get_by_role("button", name="Save as").click()
    naming = page.get_by_role("dialog", name="Save as a template")
    naming.get_by_label("Name").fill("JSON")
    naming.get_by_role("button", name="Save").click()
    expect(naming.locator(".banner.bad")).to_contain_text("Choose another name")
    naming.get_by_label("Name").fill("hello <b>")
    naming.get_by_role("button", name="Save").click()
    expect(page.locator(".toast")).to_contain_text("kept in this browser")
    # Another entity, another visit.
    page.goto(portal.url + "messages?path=invoices")
    page.get_by_role("button", name="Send").click()
    dialog = page.get_by_role("dialog", name="Send to invoices")
    dialog.get_by_label("Template").click()
    page.get_by_role("option", name="hello <b>").click()
    expect(dialog.get_by_label("Body")).to_have_value('{"hello": 1}')
    expect(dialog.get_by_label("Application properties")).to_have_value("region=eu")
    dialog.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    with portal.client() as client:
        (message,) = client.receiver("invoices").receive(1, timeout_s=5)
    assert (message.subject, message.application_properties) == ("greeting", {"region": "eu"})
    page.get_by_role("button", name="Send", exact=True).first.click()
    dialog.get_by_role("button", name="Delete").click()
    assert page.evaluate("localStorage.getItem('bendybus-portal-templates')") == "{}"


def test_messages_are_received_and_settled(portal, visit):
    portal.send("invoices", 4)
    page = visit("messages?path=invoices")
    page.get_by_role("button", name="Receive").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("How many").fill("4")
    dialog.get_by_role("button", name="Receive").click()
    held = page.locator(".held")
    expect(held.locator("tbody tr")).to_have_count(4)
    for number, action in enumerate(("Complete", "Abandon", "Defer", "Dead-letter")):
        row = held.locator("tr", has_text=f"invoices-{number}")
        row.get_by_role("button", name=action, exact=True).click()
        expect(row).to_have_count(0)
    expect(held).to_be_hidden()
    page.goto(portal.url + "entity?path=invoices")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("1")
    expect(page.locator(".stat", has_text="Deferred")).to_contain_text("1")
    expect(page.locator(".stat", has_text="Dead letters")).to_contain_text("1")


def test_a_deferred_message_is_fetched_and_completed(portal, visit):
    portal.send("orders", 1)
    with portal.client() as client:
        receiver = client.receiver("orders")
        receiver.defer(receiver.receive(1, timeout_s=5))
    page = visit("messages?path=orders&state=deferred")
    page.locator("tbody tr").get_by_role("button", name="Fetch").click()
    held = page.locator(".held")
    held.get_by_role("button", name="Complete").click()
    expect(held).to_be_hidden()
    expect(page.locator(".empty")).to_contain_text("No such messages")


def test_a_scheduled_message_is_cancelled(portal, visit):
    page = visit("messages?path=orders")
    page.get_by_role("button", name="Send").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Enqueue later").fill("1h")
    dialog.get_by_role("button", name="Send").click()
    row = page.locator("tbody tr")
    expect(row).to_contain_text("Scheduled")
    row.get_by_role("button", name="Cancel").click()
    expect(page.locator(".empty")).to_contain_text("No messages")
    page.locator(".undo").get_by_role("button", name="Undo").click()
    expect(row).to_contain_text("Scheduled")


def test_completed_messages_are_put_back_by_key(portal, visit):
    with portal.client() as client:
        sender = client.sender("archive")
        for key in ("ada", "ada", "bob"):
            sender.send([encode(key.encode(), partition_key=key)], key)
        receiver = client.receiver("archive")
        left = 3
        while left:
            received = receiver.receive(left, timeout_s=30)
            receiver.complete(received)
            left -= len(received)
        receiver.close()
    page = visit("messages?path=archive")
    expect(page.locator(".empty")).to_contain_text("No messages")
    page.get_by_role("button", name="Replay").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Session id or partition key").fill("eve")
    dialog.get_by_role("button", name="Replay").click()
    expect(dialog).to_contain_text("No completed message that is kept matches.")
    dialog.get_by_label("Session id or partition key").fill("ada")
    dialog.get_by_role("button", name="Replay").click()
    asked = page.get_by_role("alertdialog")
    expect(asked).to_contain_text("2 completed messages will be put back")
    asked.get_by_role("button", name="Put back").click()
    expect(page.locator(".job")).to_contain_text("2 of 2", timeout=60_000)
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(2)
    # An entity that keeps nothing has nothing to put back.
    page.goto(portal.url + "messages?path=orders")
    expect(page.get_by_role("button", name="Purge")).to_be_visible()
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)


def test_messages_are_moved_and_purged_with_progress(portal, visit):
    portal.send("orders", 500)
    page = visit("messages?path=orders")
    page.get_by_role("button", name="Move").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("To the queue or topic").fill("payments")
    dialog.get_by_role("button", name="Move").click()
    expect(page.locator(".job")).to_contain_text("500 of 500", timeout=60_000)
    page.goto(portal.url + "messages?path=payments")
    page.get_by_role("button", name="Purge").click()
    page.locator(".dialog:visible").get_by_role("button", name="Purge").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".job").first).to_contain_text("500", timeout=60_000)
    page.goto(portal.url + "entity?path=payments")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("0")

// Topics, subscriptions and rules with the unmodified JavaScript SDK. Run by run.py.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { administration, client, kinds, listed, received } from "./broker.mjs";

after(() => client.close());

for (const { enablePartitioning, kind } of kinds) {
  const newTopic = async (name, ...subscriptions) => {
    const topic = `js-topic-${kind}-${name}`;
    await administration.createTopic(topic, { enablePartitioning });
    for (const subscription of subscriptions) await administration.createSubscription(topic, subscription);
    return topic;
  };

  test(`every subscription gets its copy (${kind})`, async () => { // P-01
    const topic = await newTopic("copies", "a", "b");
    const sender = client.createSender(topic);
    await sender.sendMessages([{ body: 1 }, { body: 2 }]);
    for (const subscription of ["a", "b"]) {
      const receiver = client.createReceiver(topic, subscription);
      assert.equal((await receiver.peekMessages(10)).length, 2);
      const messages = await received(receiver, 2);
      assert.deepEqual(messages.map((message) => message.body), [1, 2]);
      for (const message of messages) await receiver.completeMessage(message);
      await receiver.close();
    }
    await sender.close();
  });

  test(`rules made over AMQP choose and change (${kind})`, async () => { // P-24 P-35
    const topic = await newTopic("rules", "s");
    const rules = client.createRuleManager(topic, "s");
    await rules.deleteRule("$Default");
    await rules.createRule("sql", { sqlExpression: "colour = 'red'" }, { sqlExpression: "SET seen = 1" });
    const correlation = { subject: "chosen", applicationProperties: { number: 5, text: "five", flag: true } };
    await rules.createRule("correlated", correlation);
    const found = Object.fromEntries((await listed(rules.listRules())).map((rule) => [rule.name, rule]));
    assert.deepEqual(Object.keys(found).sort(), ["correlated", "sql"]);
    assert.equal(found.sql.filter.sqlExpression, "colour = 'red'");
    assert.equal(found.sql.action.sqlExpression, "SET seen = 1");
    assert.equal(found.correlated.filter.subject, "chosen");
    assert.deepEqual({ ...found.correlated.filter.applicationProperties }, correlation.applicationProperties);
    // The same over HTTP.
    const overHttp = await administration.getRule(topic, "s", "correlated");
    assert.deepEqual({ ...overHttp.filter.applicationProperties }, correlation.applicationProperties);
    await assert.rejects(rules.createRule("sql", { sqlExpression: "1=1" }), { code: "MessagingEntityAlreadyExists" });
    await assert.rejects(rules.deleteRule("missing"), { code: "MessagingEntityNotFound" });

    const sender = client.createSender(topic);
    await sender.sendMessages({ body: "red", applicationProperties: { colour: "red" } });
    await sender.sendMessages({ body: "blue", applicationProperties: { colour: "blue" } });
    await sender.sendMessages({ body: "chosen", ...correlation });
    const receiver = client.createReceiver(topic, "s", { receiveMode: "receiveAndDelete" });
    const messages = Object.fromEntries((await received(receiver, 2)).map((message) => [message.body, message]));
    assert.deepEqual(Object.keys(messages).sort(), ["chosen", "red"]);
    assert.equal(messages.red.applicationProperties.seen, 1);
    await Promise.all([sender.close(), receiver.close()]);
  });

  test(`a subscription settles, defers and has dead letters (${kind})`, async () => { // P-05
    const topic = await newTopic("settling", "s");
    const sender = client.createSender(topic);
    const receiver = client.createReceiver(topic, "s");
    await sender.sendMessages({ body: "x" });
    const [first] = await received(receiver, 1);
    await receiver.abandonMessage(first);
    const [again] = await received(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    await receiver.deferMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages(again.sequenceNumber);
    await receiver.deadLetterMessage(deferred, { deadLetterReason: "R", deadLetterErrorDescription: "D" });
    const letters = client.createReceiver(topic, "s", { subQueueType: "deadLetter" });
    const [letter] = await received(letters, 1);
    assert.deepEqual([letter.deadLetterReason, letter.deadLetterErrorDescription], ["R", "D"]);
    await letters.completeMessage(letter);
    await Promise.all([sender.close(), receiver.close(), letters.close()]);
  });

  test(`messages to a topic are scheduled and cancelled (${kind})`, async () => { // P-35
    const topic = await newTopic("scheduling", "s");
    const sender = client.createSender(topic);
    const [never] = await sender.scheduleMessages({ body: "never" }, new Date(Date.now() + 3_600_000));
    await sender.cancelScheduledMessages(never);
    await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 1000));
    const receiver = client.createReceiver(topic, "s", { receiveMode: "receiveAndDelete" });
    assert.deepEqual((await received(receiver, 1)).map((message) => message.body), ["soon"]);
    await Promise.all([sender.close(), receiver.close()]);
  });

  test(`subscriptions have sessions (${kind})`, async () => { // P-13
    const topic = await newTopic("sessions");
    await administration.createSubscription(topic, "s", { requiresSession: true });
    const sender = client.createSender(topic);
    for (const body of ["a1", "b1", "a2"]) await sender.sendMessages({ body, sessionId: body[0] });
    const named = await client.acceptSession(topic, "s", "a");
    assert.deepEqual((await named.peekMessages(10)).map((message) => message.body), ["a1", "a2"]);
    assert.deepEqual((await received(named, 2)).map((message) => message.body), ["a1", "a2"]);
    await named.setSessionState("state");
    assert.equal(await named.getSessionState(), "state");
    const next = await client.acceptNextSession(topic, "s");
    assert.equal(next.sessionId, "b");
    await Promise.all([sender.close(), named.close(), next.close()]);
  });
}

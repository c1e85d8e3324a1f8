// The unmodified JavaScript SDK against a real server, on both kinds of queue. Run by run.py.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { administration, client, received, withSignature } from "./broker.mjs";

after(() => client.close());

for (const enablePartitioning of [false, true]) {
  const kind = enablePartitioning ? "partitioned" : "plain";

  // A queue of the test's own, so that none finds another's messages.
  const onQueue = (name, work) =>
    test(`${name} (${kind})`, async () => {
      const queue = `js-${kind}-${name.replaceAll(" ", "-")}`;
      await administration.createQueue(queue, { enablePartitioning });
      const sender = client.createSender(queue);
      const receiver = client.createReceiver(queue);
      await work({ queue, sender, receiver });
      await sender.close();
      await receiver.close();
    });

  onQueue("what is sent is received", async ({ sender, receiver }) => {
    const bodies = [1, 2, 3, 4, 5].map((number) => ({ number }));
    await sender.sendMessages(bodies.map((body) => ({ body, subject: "s", applicationProperties: { a: 1 } })));
    const batch = await sender.createMessageBatch();
    assert.ok(batch.tryAddMessage({ body: "in a batch" }));
    await sender.sendMessages(batch);
    assert.equal((await receiver.peekMessages(10)).length, 6);
    const messages = await received(receiver, 6);
    for (const message of messages) await receiver.completeMessage(message);
    assert.deepEqual(messages.map((message) => message.deliveryCount), [0, 0, 0, 0, 0, 0]);
    assert.equal((await receiver.peekMessages(10, { fromSequenceNumber: undefined })).length, 0);
  });

  onQueue("what a raw message says comes back", async ({ sender, receiver }) => {
    // rhea writes the footer before the body.
    await sender.sendMessages({
      body: "b",
      bodyType: "data",
      header: { durable: false, firstAcquirer: false, priority: 20, timeToLive: 100000 },
      footer: { foot: "note" },
      messageAnnotations: { mine: "annotation" },
    });
    const [peeked] = await receiver.peekMessages(1, { omitMessageBody: true });
    assert.equal(peeked.body, undefined);
    assert.ok(Number(peeked._rawAmqpMessage.deliveryAnnotations["omitted-message-body-size"]) > 0);
    const [message] = await received(receiver, 1);
    const raw = message._rawAmqpMessage;
    assert.deepEqual([message.body, raw.footer, raw.messageAnnotations.mine], ["b", { foot: "note" }, "annotation"]);
    assert.deepEqual([raw.header.firstAcquirer, raw.header.durable, raw.header.priority], [false, false, 20]);
    assert.ok(raw.deliveryAnnotations["x-opt-lock-token"]);
    await receiver.completeMessage(message);
  });

  onQueue("a signature in the connection string is enough", async ({ queue, receiver }) => {
    const signed = new ServiceBusClient(withSignature(queue));
    const sender = signed.createSender(queue);
    await sender.sendMessages({ body: "signed" });
    await signed.close();
    const [message] = await received(receiver, 1);
    assert.equal(message.body, "signed");
    await receiver.completeMessage(message);
  });

  onQueue("abandoned messages come again", async ({ sender, receiver }) => {
    await sender.sendMessages({ body: "x" });
    const [first] = await received(receiver, 1);
    await receiver.abandonMessage(first, { why: "because" });
    const [again] = await received(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    assert.equal(again.applicationProperties.why, "because");
    await receiver.completeMessage(again);
  });

  onQueue("dead letters say why", async ({ queue, sender, receiver }) => {
    await sender.sendMessages({ body: "x" });
    const [message] = await received(receiver, 1);
    await receiver.deadLetterMessage(message, { deadLetterReason: "R", deadLetterErrorDescription: "D" });
    const letters = client.createReceiver(queue, { subQueueType: "deadLetter", receiveMode: "receiveAndDelete" });
    const [letter] = await received(letters, 1);
    assert.deepEqual([letter.deadLetterReason, letter.deadLetterErrorDescription], ["R", "D"]);
    await letters.close();
  });

  onQueue("deferred messages are reached by number", async ({ sender, receiver }) => {
    await sender.sendMessages({ body: "x" });
    const [message] = await received(receiver, 1);
    const until = await receiver.renewMessageLock(message);
    assert.ok(until > new Date());
    await receiver.deferMessage(message);
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    await receiver.completeMessage(deferred);
    assert.equal(deferred.body, "x");
  });

  onQueue("scheduled messages can be cancelled", async ({ sender, receiver }) => {
    const numbers = await sender.scheduleMessages([{ body: "later" }], new Date(Date.now() + 3_600_000));
    assert.equal((await receiver.peekMessages(10))[0].state, "scheduled");
    await sender.cancelScheduledMessages(numbers);
  });

  onQueue("an iterator gives one after the other", async ({ sender, receiver }) => { // P-25
    await sender.sendMessages(["a", "b", "c"].map((body) => ({ body, partitionKey: "k" })));
    const bodies = [];
    for await (const message of receiver.getMessageIterator()) {
      bodies.push(message.body);
      await receiver.completeMessage(message);
      if (bodies.length === 3) break;
    }
    assert.deepEqual(bodies, ["a", "b", "c"]);
  });

  onQueue("every property arrives", async ({ sender, receiver }) => { // P-05 P-12
    const sent = {
      body: new Uint8Array([1, 2, 3]), messageId: "m", contentType: "t", correlationId: "c", partitionKey: "k",
      subject: "s", to: "to", replyTo: "r", replyToSessionId: "rs", timeToLive: 3_600_000,
      applicationProperties: { text: "v", number: 5, flag: true, none: null },
    };
    await sender.sendMessages(sent);
    const [message] = await received(receiver, 1);
    await receiver.completeMessage(message);
    for (const [name, value] of Object.entries(sent)) {
      if (name !== "body") assert.deepEqual(message[name], value, name);
    }
    assert.deepEqual([...message.body], [1, 2, 3]);
    assert.ok(message.lockedUntilUtc > message.enqueuedTimeUtc && message.expiresAtUtc > message.enqueuedTimeUtc);
  });

  onQueue("AMQP messages keep their sections", async ({ sender, receiver }) => { // P-05
    await sender.sendMessages({ bodyType: "value", body: { nested: [1, 2] }, applicationProperties: { a: 1 } });
    await sender.sendMessages({ bodyType: "sequence", body: [[1, 2]] });
    const messages = await received(receiver, 2);
    const byType = Object.fromEntries(messages.map((message) => [message._rawAmqpMessage.bodyType, message.body]));
    assert.deepEqual(byType, { value: { nested: [1, 2] }, sequence: [[1, 2]] });
  });

  onQueue("scheduled messages come when they are due", async ({ sender, receiver }) => { // P-35
    await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 1000));
    const [message] = await received(receiver, 1);
    assert.equal(message.body, "soon");
    await receiver.completeMessage(message);
  });

  onQueue("what was settled cannot be settled again", async ({ sender, receiver }) => { // P-05
    await sender.sendMessages({ body: "x" });
    const [message] = await received(receiver, 1);
    await receiver.completeMessage(message);
    await assert.rejects(receiver.renewMessageLock(message), { code: "MessageLockLost" });
  });

  onQueue("subscribing streams", async ({ sender, receiver }) => {
    const { promise, resolve, reject } = deferred();
    const subscription = receiver.subscribe({
      processMessage: async (message) => resolve(message.body),
      processError: async ({ error }) => reject(error),
    });
    await sender.sendMessages({ body: "streamed" });
    assert.equal(await promise, "streamed");
    await subscription.close();
  });
}

for (const enablePartitioning of [false, true]) {
  const kind = enablePartitioning ? "partitioned" : "plain";

  test(`sessions are accepted, kept in order and remembered (${kind})`, async () => {
    const queue = `js-sessions-${kind}`;
    await administration.createQueue(queue, { enablePartitioning, requiresSession: true });
    const sender = client.createSender(queue);
    for (const sessionId of ["a", "b"]) {
      for (const number of [1, 2, 3]) await sender.sendMessages({ body: `${sessionId}${number}`, sessionId });
    }
    const named = await client.acceptSession(queue, "a");
    assert.equal(named.sessionId, "a");
    assert.ok(named.sessionLockedUntilUtc > new Date());
    const messages = await received(named, 3);
    assert.deepEqual(messages.map((message) => message.body), ["a1", "a2", "a3"]);
    await named.setSessionState({ done: 3 });
    assert.deepEqual(await named.getSessionState(), { done: 3 });
    assert.ok((await named.renewSessionLock()) > new Date());
    for (const message of messages) await named.completeMessage(message);
    await assert.rejects(client.acceptSession(queue, "a"), { code: "SessionCannotBeLocked" });
    const next = await client.acceptNextSession(queue);
    assert.equal(next.sessionId, "b");
    const [first, second] = await received(next, 2);
    await next.deferMessage(first);
    await next.abandonMessage(second);
    const [late] = await next.receiveDeferredMessages(first.sequenceNumber);
    assert.equal(late.body, "b1");
    await next.completeMessage(late);
    assert.deepEqual((await received(next, 2)).map((message) => message.body), ["b2", "b3"]);
    await named.close();
    await next.close();
    await assert.rejects(sender.sendMessages({ body: "without" }), /SessionId was not set/);
    await sender.close();
  });
}

function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

test("a missing queue is named", async () => {
  await assert.rejects(client.createSender("nowhere").sendMessages({ body: 1 }), {
    code: "MessagingEntityNotFound",
    message: new RegExp(`The messaging entity 'sb://${client.fullyQualifiedNamespace}/nowhere' could not be found`),
  });
});

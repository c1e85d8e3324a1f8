// Everything that the JavaScript SDK's administration client offers. Run by run.py.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { administration, client, kinds, listed } from "./broker.mjs";

after(() => client.close());

const rule = {
  claimType: "SharedAccessKey", keyName: "Reader", accessRights: ["Listen", "Send"],
  primaryKey: "a-primary-key-of-its-own", secondaryKey: "a-second-key-of-its-own",
};

const assertHas = (found, expected) => {
  for (const [name, value] of Object.entries(expected)) assert.deepEqual(found[name], value, name);
};

test("the namespace is described", async () => {
  const found = await administration.getNamespaceProperties();
  assert.equal(found.messagingSku, "Standard");
  assert.ok(found.createdAt <= new Date());
});

for (const { enablePartitioning, kind } of kinds) {
  test(`queues are made, shown, updated and deleted (${kind})`, async () => { // P-01 P-06 P-08 P-32
    const name = `js-made-${kind}`;
    const wanted = {
      enablePartitioning, lockDuration: "PT45S", requiresDuplicateDetection: true, requiresSession: true,
      defaultMessageTimeToLive: "P3D", deadLetteringOnMessageExpiration: true, maxDeliveryCount: 7,
      duplicateDetectionHistoryTimeWindow: "PT5M", enableBatchedOperations: false, autoDeleteOnIdle: "PT2H",
      userMetadata: "über <&>", status: "SendDisabled",
    };
    await administration.createQueue(name, { ...wanted, maxSizeInMegabytes: 2048, authorizationRules: [rule] });
    const made = await administration.getQueue(name);
    assertHas(made, { ...wanted, name, maxSizeInMegabytes: enablePartitioning ? 16 * 2048 : 2048 });
    assertHas(made.authorizationRules[0], { ...rule, accessRights: made.authorizationRules[0].accessRights });
    assert.deepEqual([...made.authorizationRules[0].accessRights].sort(), rule.accessRights);
    made.maxDeliveryCount = 3;
    made.status = "Active";
    assertHas(await administration.updateQueue(made), { maxDeliveryCount: 3, status: "Active" });
    const counts = await administration.getQueueRuntimeProperties(name);
    assertHas(counts, { totalMessageCount: 0, activeMessageCount: 0, transferMessageCount: 0 });
    await assert.rejects(administration.createQueue(name), { code: "MessageEntityAlreadyExistsError" });
    assert.ok((await listed(administration.listQueues())).some((queue) => queue.name === name));
    assert.ok((await listed(administration.listQueuesRuntimeProperties())).some((queue) => queue.name === name));
    await administration.deleteQueue(name);
    assert.equal(await administration.queueExists(name), false);
    await assert.rejects(administration.getQueue(name), { code: "MessageEntityNotFoundError" });
  });

  test(`topics are made, shown, updated and deleted (${kind})`, async () => { // P-01 P-32
    const name = `js-made-topic-${kind}`;
    const wanted = {
      enablePartitioning, requiresDuplicateDetection: true, defaultMessageTimeToLive: "P3D",
      duplicateDetectionHistoryTimeWindow: "PT5M", supportOrdering: !enablePartitioning, autoDeleteOnIdle: "PT2H",
      userMetadata: "m", status: "Active",
    };
    await administration.createTopic(name, { ...wanted, authorizationRules: [rule] });
    const made = await administration.getTopic(name);
    assertHas(made, { ...wanted, name });
    assert.equal(made.authorizationRules[0].keyName, "Reader");
    made.userMetadata = "changed";
    assertHas(await administration.updateTopic(made), { userMetadata: "changed" });
    await administration.createSubscription(name, "s");
    assertHas(await administration.getTopicRuntimeProperties(name), { subscriptionCount: 1, scheduledMessageCount: 0 });
    assert.ok((await listed(administration.listTopics())).some((topic) => topic.name === name));
    assert.ok((await listed(administration.listTopicsRuntimeProperties())).some((topic) => topic.name === name));
    await administration.deleteTopic(name);
    assert.equal(await administration.topicExists(name), false);
  });

  test(`subscriptions are made, shown, updated and deleted (${kind})`, async () => { // P-01 P-32 P-33
    const topic = `js-subscriptions-${kind}`;
    await administration.createTopic(topic, { enablePartitioning });
    const wanted = {
      lockDuration: "PT45S", requiresSession: true, defaultMessageTimeToLive: "P3D", maxDeliveryCount: 7,
      deadLetteringOnMessageExpiration: true, deadLetteringOnFilterEvaluationExceptions: false,
      enableBatchedOperations: false, autoDeleteOnIdle: "PT2H", userMetadata: "m",
    };
    const defaultRuleOptions = { name: "red", filter: { sqlExpression: "colour = 'red'" } };
    await administration.createSubscription(topic, "s", { ...wanted, defaultRuleOptions });
    const made = await administration.getSubscription(topic, "s");
    assertHas(made, { ...wanted, topicName: topic, subscriptionName: "s" });
    assert.deepEqual((await listed(administration.listRules(topic, "s"))).map((each) => each.name), ["red"]);
    made.maxDeliveryCount = 2;
    assertHas(await administration.updateSubscription(made), { maxDeliveryCount: 2 });
    assertHas(await administration.getSubscriptionRuntimeProperties(topic, "s"), { totalMessageCount: 0 });
    for (const list of ["listSubscriptions", "listSubscriptionsRuntimeProperties"]) {
      assert.deepEqual((await listed(administration[list](topic))).map((each) => each.subscriptionName), ["s"]);
    }
    await administration.deleteSubscription(topic, "s");
    assert.equal(await administration.subscriptionExists(topic, "s"), false);
  });

  test(`rules are made, shown, updated and deleted (${kind})`, async () => { // P-01
    const topic = `js-rules-${kind}`;
    await administration.createTopic(topic, { enablePartitioning });
    await administration.createSubscription(topic, "s");
    const sql = { sqlExpression: "size > @limit", sqlParameters: { "@limit": 3 } };
    await administration.createRule(topic, "s", "sql", sql, { sqlExpression: "SET seen = 1" });
    const correlation = {
      correlationId: "c", messageId: "m", to: "to", replyTo: "r", subject: "l", sessionId: "s", replyToSessionId: "rs",
      contentType: "t", applicationProperties: { number: 5, half: 0.5, text: "five", flag: true, at: new Date(0) },
    };
    await administration.createRule(topic, "s", "correlated", correlation);
    const found = await administration.getRule(topic, "s", "sql");
    assertHas(found.filter, sql);
    assert.equal(found.action.sqlExpression, "SET seen = 1");
    assertHas((await administration.getRule(topic, "s", "correlated")).filter, correlation);
    found.filter = { sqlExpression: "size > 5" };
    assert.equal((await administration.updateRule(topic, "s", found)).filter.sqlExpression, "size > 5");
    await administration.deleteRule(topic, "s", "$Default");
    assert.equal(await administration.ruleExists(topic, "s", "$Default"), false);
    await assert.rejects(administration.createRule(topic, "s", "bad", { sqlExpression: "a = = b" }), { statusCode: 400 });
  });
}

test("lists have all pages", async () => { // P-01
  const topic = "js-pages";
  await administration.createTopic(topic);
  const names = Array.from({ length: 7 }, (_, number) => `s${number}`);
  for (const name of names) await administration.createSubscription(topic, name);
  const found = [];
  for await (const page of administration.listSubscriptions(topic).byPage({ maxPageSize: 3 })) {
    assert.ok(page.length <= 3);
    found.push(...page.map((each) => each.subscriptionName));
  }
  assert.deepEqual(found.sort(), names);
});

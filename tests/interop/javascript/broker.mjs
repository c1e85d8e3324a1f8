// The server and the SDK's clients for it, made as a user would make them.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

const { BENDYBUS_CONNECTION_STRING, BENDYBUS_TLS_CONNECTION_STRING } = process.env;

// The connection string with a token for one queue instead of a key: such a client has no SASL layer.
export const withSignature = (queue) => {
  const parts = Object.fromEntries(BENDYBUS_CONNECTION_STRING.split(";").map((part) => part.split(/=(.*)/s)));
  const resource = encodeURIComponent(`${parts.Endpoint.replace(/\/$/, "")}/${queue}`);
  const expiry = Math.floor(Date.now() / 1000) + 3600;
  const signature = createHmac("sha256", parts.SharedAccessKey).update(`${resource}\n${expiry}`).digest("base64");
  const token = `sr=${resource}&sig=${encodeURIComponent(signature)}&se=${expiry}&skn=${parts.SharedAccessKeyName}`;
  const string = `Endpoint=${parts.Endpoint};SharedAccessSignature=SharedAccessSignature ${token}`;
  return "UseDevelopmentEmulator" in parts ? `${string};UseDevelopmentEmulator=true` : string;
};

// A refusal is to be seen, not retried.
export const client = new ServiceBusClient(BENDYBUS_CONNECTION_STRING, { retryOptions: { maxRetries: 0 } });
export const administration = new ServiceBusAdministrationClient(BENDYBUS_TLS_CONNECTION_STRING);

// Everything is shown on both, since a receiver cannot tell the difference (P-05).
export const kinds = [false, true].map((enablePartitioning) => ({
  enablePartitioning,
  kind: enablePartitioning ? "partitioned" : "plain",
}));

export const received = async (receiver, count) => {
  const messages = [];
  while (messages.length < count) {
    const more = await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: 10_000 });
    assert.notEqual(more.length, 0, `only ${messages.length} of ${count} came`);
    messages.push(...more);
  }
  return messages;
};

export const listed = async (iterator) => {
  const found = [];
  for await (const each of iterator) found.push(each);
  return found;
};

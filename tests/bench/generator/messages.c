/* The messages: encoded once, then stamped for each send, so that sending costs the client little. */
#include "load.h"

#include <proton/codec.h>
#include <proton/message.h>

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char ID[] = "bench-0000000000000000";
static const char ID_AGAIN[] = "again-0000000000000000"; /* the same digits, as an application property */
static const char KEY[] = "key-00000000", SESSION[] = "session-00000000";
enum { ID_PREFIX = sizeof "bench-" - 1, KEY_PREFIX = sizeof "key-" - 1, SESSION_PREFIX = sizeof "session-" - 1 };
enum { ID_DIGITS = 16, NUMBER_DIGITS = 8, DATA_HEADER_BYTES = 8 };

static pn_bytes_t text(const char *value) { return pn_bytes(strlen(value), value); }

/* Two unless told otherwise; beyond them, of the types that applications use. */
static void put_properties(pn_data_t *map) {
  static const char *NAMES[] = {"kind",    "origin", "tenant", "region", "priority",
                                "attempt", "price",  "urgent", "trace",  "shard"};
  pn_data_put_map(map);
  pn_data_enter(map);
  for (size_t i = 0; i < options.properties && i < sizeof NAMES / sizeof *NAMES; i++) {
    pn_data_put_string(map, text(NAMES[i]));
    switch (i) {
      case 0: pn_data_put_string(map, text("reading")); break;
      case 1: pn_data_put_string(map, text("tests/bench")); break;
      case 4: pn_data_put_int(map, 3); break;
      case 5: pn_data_put_long(map, 1); break;
      case 6: pn_data_put_double(map, 9.5); break;
      case 7: pn_data_put_bool(map, true); break;
      case 9: pn_data_put_int(map, 42); break;
      default: pn_data_put_string(map, text("west-europe-1")); break;
    }
  }
  if (options.id_property) {
    pn_data_put_string(map, text(options.id_property));
    pn_data_put_string(map, text(ID_AGAIN));
  }
  pn_data_exit(map);
}

static void put_partition_key(pn_message_t *message) {
  pn_data_t *annotations = pn_message_annotations(message);
  pn_data_put_map(annotations);
  pn_data_enter(annotations);
  pn_data_put_symbol(annotations, text("x-opt-partition-key"));
  pn_data_put_string(annotations, text(KEY));
  pn_data_exit(annotations);
}

/* One message, encoded; its size. */
static size_t encode_message(char *into, size_t room, bool keyed) {
  char *body = allocate(options.body_bytes, 1);
  for (size_t i = 0; i < options.body_bytes; i++) body[i] = (char)(i * 31 + 7);
  pn_message_t *message = pn_message();
  pn_message_set_durable(message, true);
  pn_message_set_inferred(message, true); /* the body is a data section, not a value */
  pn_message_set_content_type(message, "application/octet-stream");
  pn_data_put_string(pn_message_id(message), text(ID));
  if (keyed) put_partition_key(message);
  if (options.sessions) pn_message_set_group_id(message, SESSION);
  put_properties(pn_message_properties(message));
  pn_data_put_binary(pn_message_body(message), pn_bytes(options.body_bytes, body));
  size_t size = room;
  if (pn_message_encode(message, into, &size)) size = 0;
  pn_message_free(message);
  free(body);
  return size;
}

/* Where the digits of a placeholder begin; 0 if it is not there. */
static size_t find_digits(const template *t, const char *placeholder, size_t prefix) {
  const char *from = t->bytes + t->envelope + t->message;
  const char *found = memmem(from, t->stride - t->message, placeholder, strlen(placeholder));
  return found ? (size_t)(found - from) + prefix : 0;
}

/* A batch is an envelope with the sections of its first message but the body, and a data section for each. */
bool build_transfer(template *t, bool keyed) {
  size_t room = options.body_bytes + OVERHEAD_BYTES;
  char *encoded = allocate(room, 1);
  size_t size = encode_message(encoded, room, keyed);
  if (!size) return false;
  bool batch = options.batch > 0;
  size_t body_header = options.body_bytes < 256 ? 5 : DATA_HEADER_BYTES;
  t->messages = batch ? options.batch : 1;
  t->envelope = batch ? size - options.body_bytes - body_header : 0;
  t->message = batch ? DATA_HEADER_BYTES : 0;
  t->stride = t->message + size;
  t->size = t->envelope + t->messages * t->stride;
  t->bytes = allocate(t->size, 1);
  memcpy(t->bytes, encoded, t->envelope);
  for (size_t i = 0; i < t->messages; i++) {
    char *at = t->bytes + t->envelope + i * t->stride;
    if (batch) {
      const char header[DATA_HEADER_BYTES] = {0x00, 0x53, 0x75, (char)0xb0, (char)(size >> 24), (char)(size >> 16),
                                              (char)(size >> 8), (char)size};
      memcpy(at, header, sizeof header);
    }
    memcpy(at + t->message, encoded, size);
  }
  free(encoded);
  t->id = find_digits(t, ID, ID_PREFIX);
  t->key = find_digits(t, KEY, KEY_PREFIX);
  t->session = find_digits(t, SESSION, SESSION_PREFIX);
  t->id_property = find_digits(t, ID_AGAIN, ID_PREFIX);
  return t->id && !t->key == !keyed && !t->session == !options.sessions &&
         !t->id_property == !options.id_property;
}

static void write_hex(char *at, uint64_t number) {
  static const char DIGITS[] = "0123456789abcdef";
  for (int i = 0; i < ID_DIGITS; i++) at[i] = DIGITS[(number >> (60 - 4 * i)) & 15];
}

static void write_decimal(char *at, uint64_t number) {
  for (int i = NUMBER_DIGITS - 1; i >= 0; i--, number /= 10) at[i] = (char)('0' + number % 10);
}

/* Another run's ids must differ, or a queue that detects duplicates takes its messages for them. */
static uint64_t run_number(void) {
  static uint64_t number;
  if (!number) number = ((uint64_t)time(NULL) << 20 ^ (uint64_t)getpid()) << 24;
  return number;
}

static void stamp_sections(const template *t, char *message, uint64_t id, uint64_t spread) {
  write_hex(message + t->id, id);
  if (t->key) write_decimal(message + t->key, spread % options.keys);
  if (t->session) write_decimal(message + t->session, spread % options.sessions);
  if (t->id_property) write_hex(message + t->id_property, id);
}

/* A batch has one key and one session, as the service asks. */
void stamp_transfer(template *t, uint64_t sequence, uint64_t at_ns) {
  uint64_t spread = sequence / t->messages, run = run_number();
  if (t->envelope) stamp_sections(t, t->bytes, run + sequence, spread);
  for (size_t i = 0; i < t->messages; i++, sequence++) {
    char *message = t->bytes + t->envelope + i * t->stride + t->message;
    stamp_sections(t, message, run + sequence, spread);
    char *body = message + t->stride - t->message - options.body_bytes; /* the last section, no footer */
    memcpy(body, &sequence, 8);
    memcpy(body + 8, &at_ns, 8);
  }
}

bool read_stamp(const char *encoded, size_t bytes, uint64_t *sequence, uint64_t *at_ns) {
  if (bytes <= options.body_bytes) return false;
  memcpy(sequence, encoded + bytes - options.body_bytes, 8);
  memcpy(at_ns, encoded + bytes - options.body_bytes + 8, 8);
  return *sequence < options.count;
}

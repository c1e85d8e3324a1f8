/* What the parts of the load generator share. Who does what: main.c. */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE
#include <proton/condition.h>
#include <proton/connection.h>
#include <proton/connection_driver.h>
#include <proton/delivery.h>
#include <proton/link.h>
#include <proton/session.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PORTS_MAX = 16, SOURCES_MAX = 64, PROPERTIES_MAX = 10, TRANSACTIONS_MAX = 1024 };
/* A message is its body plus header, message-id and properties: well under this. */
enum { OVERHEAD_BYTES = 2048 };
/* The body opens with the sequence number and the time of sending, 8 bytes each. */
enum { STAMP_BYTES = 16 };

typedef enum { SEND = 1, RECEIVE = 2, BOTH = SEND | RECEIVE, DRAIN = 4, TRANSACT = 8 } run_mode;

typedef struct {
  run_mode mode;
  const char *mode_name, *host, *user, *password;
  const char *ports[PORTS_MAX];     /* of several brokers; connections take turns */
  size_t port_count;
  const char *address;              /* sent to, and received from unless `sources` says otherwise */
  const char *sources[SOURCES_MAX]; /* each gets every message: a queue, or the subscriptions of a topic */
  size_t source_count;
  const char *target;               /* transact: where the messages go */
  size_t count, body_bytes, keys, sessions, batch, properties, transactions;
  const char *id_property;          /* an application property that repeats the message-id */
  int window, credit, connections, links; /* credit: of each receiver; as the window if not given */
  bool settled, tls, next_session, keep_session;
  bool half_keyed;                  /* only the first half of the connections sends with keys */
  bool backlog;                     /* whatever arrives counts, earlier runs' messages too */
  double timeout_s;
} load_options;

extern load_options options;

/* Latencies in microseconds, one for each message; percentiles need them all. */
typedef struct {
  uint32_t *us;
  size_t count;
} latencies;

/* An encoded transfer: one message, or a batch of them behind an envelope. All messages are of one size. */
typedef struct {
  char *bytes;
  size_t size, envelope, messages, stride, message;
  size_t id, key, session, id_property; /* where a message's stamps are; 0: it has none */
} template;

typedef struct source {
  const char *address;
  uint8_t *seen; /* by sequence number */
} source;

struct peer;

/* One side of the load: a thread that drives its connections. Everything here belongs to that thread. */
typedef struct role {
  const char *name;
  run_mode mode; /* SEND, RECEIVE, DRAIN or TRANSACT */
  struct peer *peers;
  size_t peer_count, open_count, links_made;
  bool started, finished, closing;
  uint64_t finished_ns;
  char error[512];
  latencies latency; /* sender: send to accept; receiver: send to arrival; transactions: their lives */

  template transfer;                       /* sender, transactions */
  template keyless;                        /* sender: of the connections that send without keys, */
  size_t sent_keyless;                     /* which send half of the messages */
  size_t sent, settled, accepted;          /* sender, transactions */
  uint64_t *sent_ns;                       /* sender: by sequence number */
  size_t received, distinct, duplicates, foreign, sessions_taken; /* receiver, transactions */
  size_t drained;                          /* drain: links that found nothing more */
  source *sources;
  char *incoming;
} role;

/* A link of the load: what Proton keeps as its context. */
typedef struct load_link {
  struct peer *peer;
  source *source;
  pn_link_t *link;
  size_t received, round_received;
  bool attached;
} load_link;

typedef struct transactor transactor;

/* One connection. */
typedef struct peer {
  role *role;
  pn_connection_driver_t driver;
  pn_session_t *session;
  source *source; /* receiver: what it receives from */
  load_link *links;
  size_t link_count;
  transactor *transactor;
  int fd;
  bool closed, wants_write;
  size_t in_flight;    /* sender: messages sent and not settled */
  char *output;        /* gathered and not yet written: [output_start, output_end) */
  size_t output_start, output_end;
  char head[96];       /* batches: the start of a frame until it can be rewritten */
  size_t head_bytes, frame_left;
} peer;

extern _Atomic uint64_t begin_ns; /* 0 until every link that must be attached is */
extern uint64_t deadline_ns;
extern atomic_bool stop;          /* one side failed: the other need not wait for the deadline */

/* main.c */
uint64_t now_ns(void);
void *allocate(size_t count, size_t size);
void fail(role *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void fail_condition(role *r, const char *where, pn_condition_t *condition);
void finish(role *r);
void note_latency(latencies *l, uint64_t since_ns, uint64_t until_ns);

/* messages.c */
bool build_transfer(template *t, bool keyed);
void stamp_transfer(template *t, uint64_t sequence, uint64_t at_ns);
bool read_stamp(const char *encoded, size_t bytes, uint64_t *sequence, uint64_t *at_ns);

/* links.c */
void open_links(peer *p);
void start_links(peer *p);
void drain_again(peer *p);
void send_more(peer *p);
void on_event(peer *p, pn_event_t *event);
void link_attached(void);
void check_message(role *r, source *from, uint64_t sequence, uint64_t sent_at_ns);
pn_link_t *new_link(peer *p, bool sends);

/* transactions.c */
void open_transactor(peer *p);
void start_transactor(peer *p);
void pump_transactions(peer *p);
void on_transactor_event(peer *p, pn_event_t *event);

/* connections.c */
void *run_role(void *argument);
extern atomic_size_t links_awaited;

#endif

/* A neutral AMQP 1.0 load generator: the same client for every broker under test.
 *
 * One rule: nothing here knows which broker is at the other end. Connections are plain Qpid Proton;
 * each has a thread, a socket and a connection driver of its own, so sender and receiver never wait
 * for each other inside the client. Prints one line of JSON and exits 0 when every message arrived
 * once, 1 when something went wrong, 2 when called wrongly. Driven by load.py; options: usage().
 *
 *     cc -O2 -pthread load.c -o load $(pkg-config --cflags --libs libqpid-proton)
 */
#define _GNU_SOURCE
#include <proton/connection.h>
#include <proton/connection_driver.h>
#include <proton/delivery.h>
#include <proton/link.h>
#include <proton/message.h>
#include <proton/sasl.h>
#include <proton/session.h>
#include <proton/transport.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Proton hands out at most a frame at a time (16 KB); gathering several into one send() halves the
 * client's system calls without holding anything back: the buffer is flushed before every wait. */
enum { OUTPUT_BYTES = 256 * 1024, READ_BYTES = 64 * 1024 };
/* A message is its body plus header, message-id and application properties: well under this. */
enum { OVERHEAD_BYTES = 512 };
/* The body opens with the sequence number and the time of sending, 8 bytes each. */
enum { STAMP_BYTES = 16 };
/* A poll wakes at least this often, for heartbeats and for the deadline. */
enum { POLL_MS = 500 };
static const uint64_t SECOND_NS = 1000000000u;
/* Nothing answers a receiver's accept, and a broker may drop those still in its pipeline when the
 * connection goes (RabbitMQ does, and delivers again): stay this long, outside the measured time. */
static const uint64_t LINGER_NS = 200 * 1000000u;
enum { LINGER_POLL_MS = 10 };

typedef enum { SEND = 1, RECEIVE = 2, BOTH = SEND | RECEIVE, DRAIN = 4 } run_mode;

static struct {
  const char *mode_name, *host, *port, *address, *user, *password;
  run_mode mode;
  size_t count, body_bytes;
  int window;
  double timeout_s;
} options = {"both", "127.0.0.1", "5672", NULL, NULL, NULL, BOTH, 100000, 1024, 500, 120.0};

/* Latencies in microseconds, one for each message; percentiles need them all. */
typedef struct {
  uint32_t *us;
  size_t count;
} latencies;

/* One connection with one link. Everything but `stop` belongs to its own thread. */
typedef struct {
  const char *role;
  pn_connection_driver_t driver;
  pn_link_t *link;
  int fd;
  bool started, finished, closing, closed;
  uint64_t finished_ns;
  char error[512];

  char output[OUTPUT_BYTES];  /* gathered and not yet written: [output_start, output_end) */
  size_t output_start, output_end;

  size_t sent, settled, accepted;          /* sender */
  uint64_t *sent_ns;                       /* sender: by sequence number */
  char *message;                           /* sender: the encoded message, stamped for each send */
  size_t message_bytes, id_offset;
  size_t received, distinct, duplicates, foreign, at_drain; /* receiver */
  uint8_t *seen;                           /* receiver: by sequence number */
  char *incoming;
  latencies latency;                       /* sender: send to accept; receiver: send to arrival */
} peer;

static pthread_barrier_t both_attached;
static _Atomic uint64_t begin_ns, deadline_ns;
static atomic_bool stop; /* one side failed: the other need not wait for the deadline */

static uint64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (uint64_t)at.tv_sec * SECOND_NS + (uint64_t)at.tv_nsec;
}

static void fail(peer *p, const char *format, ...) {
  if (!p->error[0]) { /* the first error is the cause, the rest its consequences */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->error, sizeof p->error, format, arguments);
    va_end(arguments);
  }
  atomic_store(&stop, true);
}

static void fail_condition(peer *p, const char *where, pn_condition_t *condition) {
  const char *description = pn_condition_get_description(condition);
  fail(p, "%s: %s: %s", where, pn_condition_get_name(condition), description ? description : "");
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) {
    perror("calloc");
    exit(1);
  }
  return memory;
}

static void finish(peer *p) {
  if (p->finished) return;
  p->finished = true;
  p->finished_ns = now_ns();
}

static void note_latency(latencies *l, uint64_t since_ns, uint64_t until_ns) {
  l->us[l->count++] = (uint32_t)((until_ns - since_ns) / 1000);
}

/* ---- messages ------------------------------------------------------------------------------- */

static const char ID_PLACEHOLDER[] = "bench-0000000000000000";

static void put_property(pn_data_t *map, const char *key, const char *value) {
  pn_data_put_string(map, pn_bytes(strlen(key), key));
  pn_data_put_string(map, pn_bytes(strlen(value), value));
}

/* Encodes the message once; sending then costs the client only a stamp and a copy. */
static void build_message(peer *p) {
  char *body = allocate(options.body_bytes, 1);
  for (size_t i = 0; i < options.body_bytes; i++) body[i] = (char)(i * 31 + 7);
  pn_message_t *message = pn_message();
  pn_message_set_durable(message, true);
  pn_message_set_inferred(message, true); /* the body is a data section, not a value */
  pn_message_set_content_type(message, "application/octet-stream");
  pn_data_put_string(pn_message_id(message), pn_bytes(sizeof ID_PLACEHOLDER - 1, ID_PLACEHOLDER));
  pn_data_t *properties = pn_message_properties(message);
  pn_data_put_map(properties);
  pn_data_enter(properties);
  put_property(properties, "kind", "reading");
  put_property(properties, "origin", "tests/bench");
  pn_data_exit(properties);
  pn_data_put_binary(pn_message_body(message), pn_bytes(options.body_bytes, body));

  p->message_bytes = options.body_bytes + OVERHEAD_BYTES;
  p->message = allocate(p->message_bytes, 1);
  if (pn_message_encode(message, p->message, &p->message_bytes)) fail(p, "cannot encode the message");
  pn_message_free(message);
  free(body);
  char *id = memmem(p->message, p->message_bytes, ID_PLACEHOLDER, sizeof ID_PLACEHOLDER - 1);
  if (!id) return fail(p, "no message-id in the encoded message");
  p->id_offset = (size_t)(id - p->message) + sizeof "bench-" - 1;
}

static void stamp_message(peer *p, uint64_t sequence, uint64_t at_ns) {
  static const char DIGITS[] = "0123456789abcdef";
  char *id = p->message + p->id_offset;
  for (int i = 0; i < 16; i++) id[i] = DIGITS[(sequence >> (60 - 4 * i)) & 15];
  char *body = p->message + p->message_bytes - options.body_bytes; /* the last section, no footer */
  memcpy(body, &sequence, 8);
  memcpy(body + 8, &at_ns, 8);
}

/* ---- sender --------------------------------------------------------------------------------- */

/* Sends while the window and the broker's credit have room. */
static void send_more(peer *p) {
  while (p->sent < options.count && p->sent - p->settled < (size_t)options.window &&
         pn_link_credit(p->link) > 0) {
    uint64_t sequence = p->sent++;
    uint64_t at_ns = p->sent_ns[sequence] = now_ns();
    stamp_message(p, sequence, at_ns);
    pn_delivery(p->link, pn_dtag((const char *)&sequence, sizeof sequence));
    pn_link_send(p->link, p->message, p->message_bytes);
    pn_link_advance(p->link);
  }
}

static void on_outcome(peer *p, pn_delivery_t *delivery) {
  if (!pn_delivery_updated(delivery) || !pn_delivery_remote_state(delivery)) return;
  uint64_t sequence, state = pn_delivery_remote_state(delivery);
  memcpy(&sequence, pn_delivery_tag(delivery).start, sizeof sequence);
  if (state == PN_ACCEPTED) {
    p->accepted++;
    note_latency(&p->latency, p->sent_ns[sequence], now_ns());
  } else {
    pn_condition_t *condition = pn_disposition_condition(pn_delivery_remote(delivery));
    if (pn_condition_is_set(condition)) fail_condition(p, "message refused", condition);
    fail(p, "message %llu got outcome 0x%llx instead of accepted", (unsigned long long)sequence,
         (unsigned long long)state);
  }
  pn_delivery_settle(delivery);
  if (++p->settled == options.count) finish(p);
}

/* ---- receiver ------------------------------------------------------------------------------- */

static void check_sequence(peer *p, const char *encoded, size_t bytes) {
  uint64_t sequence = UINT64_MAX, sent_at_ns;
  if (bytes > options.body_bytes) {
    memcpy(&sequence, encoded + bytes - options.body_bytes, 8);
    memcpy(&sent_at_ns, encoded + bytes - options.body_bytes + 8, 8);
  }
  if (sequence >= options.count) {
    p->foreign++;
  } else if (p->seen[sequence]) {
    p->duplicates++;
  } else {
    p->seen[sequence] = 1;
    p->distinct++;
    note_latency(&p->latency, sent_at_ns, now_ns());
  }
}

/* Drained twice with nothing in between means empty; one round may end early over partitions. */
static void on_drained(peer *p) {
  if (pn_link_credit(p->link) > 0 || pn_link_queued(p->link) > 0 || p->finished) return;
  if (p->at_drain == p->received + 1) return finish(p);
  p->at_drain = p->received + 1;
  pn_link_drain(p->link, options.window);
}

static void on_message(peer *p, pn_delivery_t *delivery) {
  if (!pn_delivery_readable(delivery) || pn_delivery_partial(delivery)) return;
  size_t pending = pn_delivery_pending(delivery);
  if (pending > options.body_bytes + 4 * OVERHEAD_BYTES) return fail(p, "a message of %zu bytes", pending);
  ssize_t bytes = pn_link_recv(p->link, p->incoming, pending);
  p->received++;
  if (options.mode != DRAIN && bytes > 0) check_sequence(p, p->incoming, (size_t)bytes);
  pn_delivery_update(delivery, PN_ACCEPTED);
  pn_delivery_settle(delivery); /* settling the current delivery also advances the link */
  if (options.mode == DRAIN) return on_drained(p);
  if (p->distinct == options.count) return finish(p);
  int credit = pn_link_credit(p->link);
  if (credit <= options.window / 2) pn_link_flow(p->link, options.window - credit);
}

/* ---- events of either ----------------------------------------------------------------------- */

static void attach(peer *p) {
  pn_connection_t *connection = p->driver.connection;
  char name[64];
  snprintf(name, sizeof name, "bench-%s-%d", p->role, (int)getpid());
  pn_connection_set_container(connection, name);
  pn_connection_set_hostname(connection, options.host);
  pn_connection_open(connection);
  pn_session_t *session = pn_session(connection);
  pn_session_open(session);
  bool sends = p->sent_ns != NULL;
  p->link = sends ? pn_sender(session, name) : pn_receiver(session, name);
  pn_terminus_set_address(sends ? pn_link_target(p->link) : pn_link_source(p->link), options.address);
  pn_link_set_snd_settle_mode(p->link, PN_SND_UNSETTLED);
  pn_link_set_rcv_settle_mode(p->link, PN_RCV_FIRST);
  pn_link_open(p->link);
}

static void start(peer *p) {
  pthread_barrier_wait(&both_attached);
  uint64_t unset = 0;
  atomic_compare_exchange_strong(&begin_ns, &unset, now_ns());
  p->started = true;
  if (options.mode == DRAIN) {
    pn_link_drain(p->link, options.window);
  } else if (pn_link_is_receiver(p->link)) {
    pn_link_flow(p->link, options.window);
  }
}

static void on_event(peer *p, pn_event_t *event) {
  switch (pn_event_type(event)) {
    case PN_CONNECTION_INIT:
      return attach(p);
    case PN_LINK_REMOTE_OPEN: {
      /* A refused attach is answered with an empty terminus, then detached with the reason. */
      pn_terminus_t *remote = pn_link_is_sender(p->link) ? pn_link_remote_target(p->link)
                                                         : pn_link_remote_source(p->link);
      if (pn_terminus_get_type(remote) != PN_UNSPECIFIED) start(p);
      return;
    }
    case PN_LINK_FLOW:
      if (p->started && options.mode == DRAIN) on_drained(p);
      return;
    case PN_DELIVERY:
      return pn_link_is_sender(p->link) ? on_outcome(p, pn_event_delivery(event))
                                        : on_message(p, pn_event_delivery(event));
    case PN_LINK_REMOTE_CLOSE:
    case PN_LINK_REMOTE_DETACH:
      if (!p->finished) fail_condition(p, "link closed", pn_link_remote_condition(p->link));
      return;
    case PN_SESSION_REMOTE_CLOSE:
      if (!p->finished) {
        fail_condition(p, "session ended", pn_session_remote_condition(pn_event_session(event)));
      }
      return;
    case PN_CONNECTION_REMOTE_CLOSE:
      if (!p->finished) {
        fail_condition(p, "connection closed", pn_connection_remote_condition(p->driver.connection));
      }
      p->closed = true;
      return;
    case PN_TRANSPORT_ERROR:
      return fail_condition(p, "transport", pn_transport_condition(p->driver.transport));
    default:
      return;
  }
}

/* ---- the socket ----------------------------------------------------------------------------- */

static bool open_socket(peer *p) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
  int problem = getaddrinfo(options.host, options.port, &hints, &found);
  if (problem) {
    fail(p, "%s:%s: %s", options.host, options.port, gai_strerror(problem));
    return false;
  }
  p->fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  bool connected = p->fd >= 0 && connect(p->fd, found->ai_addr, found->ai_addrlen) == 0;
  if (!connected) fail(p, "%s:%s: %s", options.host, options.port, strerror(errno));
  freeaddrinfo(found);
  if (!connected) return false;
  int on = 1;
  setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(p->fd, F_SETFL, fcntl(p->fd, F_GETFL) | O_NONBLOCK);
  return true;
}

/* Gathers what Proton has to say and writes what the socket takes; true when anything moved. */
static bool write_some(peer *p) {
  for (;;) {
    pn_bytes_t pending = pn_connection_driver_write_buffer(&p->driver);
    size_t room = OUTPUT_BYTES - p->output_end;
    if (!pending.size || !room) break;
    size_t taken = pending.size < room ? pending.size : room;
    memcpy(p->output + p->output_end, pending.start, taken);
    p->output_end += taken;
    pn_connection_driver_write_done(&p->driver, taken);
  }
  if (p->output_start == p->output_end) return false;
  ssize_t written = send(p->fd, p->output + p->output_start, p->output_end - p->output_start, MSG_NOSIGNAL);
  if (written < 0) {
    if (errno != EAGAIN && errno != EINTR) fail(p, "write: %s", strerror(errno));
    return false;
  }
  p->output_start += (size_t)written;
  if (p->output_start == p->output_end) p->output_start = p->output_end = 0;
  return true;
}

static bool read_some(peer *p) {
  pn_rwbytes_t buffer = pn_connection_driver_read_buffer_sized(&p->driver, READ_BYTES);
  if (!buffer.size) return false;
  ssize_t bytes = recv(p->fd, buffer.start, buffer.size, 0);
  if (bytes < 0) {
    if (errno != EAGAIN && errno != EINTR) fail(p, "read: %s", strerror(errno));
    return false;
  }
  if (bytes == 0) {
    if (!p->finished) fail(p, "the broker closed the socket");
    p->closed = true;
    return false;
  }
  pn_connection_driver_read_done(&p->driver, (size_t)bytes);
  return true;
}

static void close_when_due(peer *p, uint64_t at_ns) {
  uint64_t linger_ns = pn_link_is_sender(p->link) ? 0 : LINGER_NS;
  if (!p->finished || p->closing || at_ns < p->finished_ns + linger_ns) return;
  p->closing = true;
  pn_connection_close(p->driver.connection);
}

static void drive(peer *p) {
  while (!p->closed && !atomic_load(&stop)) {
    pn_event_t *event;
    while ((event = pn_connection_driver_next_event(&p->driver))) on_event(p, event);
    if (p->started && pn_link_is_sender(p->link)) send_more(p);
    uint64_t at_ns = now_ns();
    close_when_due(p, at_ns);
    pn_transport_tick(p->driver.transport, (pn_timestamp_t)(at_ns / 1000000));
    if (at_ns > deadline_ns) return fail(p, "not done after %.0f s", options.timeout_s);
    bool moved = write_some(p);
    moved |= read_some(p);
    if (moved || p->closed || pn_connection_driver_has_event(&p->driver)) continue;
    struct pollfd wait = {.fd = p->fd, .events = POLLIN | (p->output_end ? POLLOUT : 0)};
    poll(&wait, 1, p->finished ? LINGER_POLL_MS : POLL_MS);
  }
}

static void *run_peer(void *argument) {
  peer *p = argument;
  pn_connection_driver_init(&p->driver, NULL, NULL);
  pn_transport_set_max_frame(p->driver.transport, READ_BYTES); /* a frame always fits the read buffer */
  pn_sasl_t *sasl = pn_sasl(p->driver.transport);
  pn_sasl_set_allow_insecure_mechs(sasl, true); /* PLAIN without TLS: this is loopback */
  pn_sasl_allowed_mechs(sasl, options.user ? "PLAIN" : "ANONYMOUS");
  if (options.user) {
    pn_connection_set_user(p->driver.connection, options.user);
    pn_connection_set_password(p->driver.connection, options.password ? options.password : "");
  }
  if (open_socket(p)) drive(p);
  /* The other side may stand at the barrier still; the process ends soon, so let it through. */
  if (!p->started) pthread_barrier_wait(&both_attached);
  if (p->fd >= 0) close(p->fd);
  pn_connection_driver_destroy(&p->driver);
  return NULL;
}

/* ---- report --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void print_latency(const char *name, latencies *l) {
  if (!l->count) return;
  qsort(l->us, l->count, sizeof *l->us, by_size);
  printf("\"%s_p50_ms\": %.3f, \"%s_p99_ms\": %.3f, ", name, l->us[l->count / 2] / 1000.0, name,
         l->us[l->count * 99 / 100] / 1000.0);
}

static void print_string(const char *text) {
  putchar('"');
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  putchar('"');
}

static double seconds_of(const peer *p) {
  uint64_t until = p->finished ? p->finished_ns : now_ns();
  return begin_ns && until > begin_ns ? (double)(until - begin_ns) / 1e9 : 0.0;
}

static bool report(peer *sender, peer *receiver) {
  bool sends = options.mode & SEND, receives = options.mode & (RECEIVE | DRAIN);
  double send_s = sends ? seconds_of(sender) : 0, receive_s = receives ? seconds_of(receiver) : 0;
  double seconds = send_s > receive_s ? send_s : receive_s;
  size_t moved = receives ? receiver->received : sender->accepted;
  size_t missing = options.mode & RECEIVE ? options.count - receiver->distinct : 0;
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;

  printf("{\"mode\": \"%s\", \"window\": %d, \"body_bytes\": %zu, ", options.mode_name, options.window,
         options.body_bytes);
  if (sends) printf("\"accepted\": %zu, \"send_seconds\": %.6f, ", sender->accepted, send_s);
  if (receives) printf("\"received\": %zu, \"receive_seconds\": %.6f, ", receiver->received, receive_s);
  if (sends) print_latency("ack", &sender->latency);
  if (options.mode & RECEIVE) print_latency("end_to_end", &receiver->latency);
  printf("\"seconds\": %.6f, \"rate\": %.1f, \"client_cpu_s\": %.3f, ", seconds,
         seconds > 0 ? (double)moved / seconds : 0.0, cpu_s);
  printf("\"missing\": %zu, \"duplicates\": %zu, \"foreign\": %zu, \"errors\": [", missing,
         receiver->duplicates, receiver->foreign);
  if (sender->error[0]) print_string(sender->error);
  if (sender->error[0] && receiver->error[0]) printf(", ");
  if (receiver->error[0]) print_string(receiver->error);
  printf("]}\n");
  return !missing && !receiver->duplicates && !receiver->foreign && !sender->error[0] && !receiver->error[0];
}

/* ---- options -------------------------------------------------------------------------------- */

static int usage(const char *program) {
  fprintf(stderr,
          "usage: %s --address A [--mode send|receive|both|drain] [--host H] [--port P]\n"
          "       [--user U --password W] [--count N] [--size BODY_BYTES] [--window W] [--timeout S]\n"
          "drain receives whatever waits, until the broker says there is no more.\n"
          "Without --user the connection is ANONYMOUS.\n",
          program);
  return 2;
}

static bool parse_mode(const char *name) {
  static const struct { const char *name; run_mode mode; } MODES[] = {
      {"send", SEND}, {"receive", RECEIVE}, {"both", BOTH}, {"drain", DRAIN}};
  for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
    if (strcmp(name, MODES[i].name)) continue;
    options.mode = MODES[i].mode;
    options.mode_name = MODES[i].name;
    return true;
  }
  return false;
}

static bool parse_options(int argc, char **argv) {
  static const struct option LONG[] = {
      {"mode", 1, 0, 'm'},   {"host", 1, 0, 'h'},  {"port", 1, 0, 'p'},   {"address", 1, 0, 'a'},
      {"user", 1, 0, 'u'},   {"password", 1, 0, 'w'}, {"count", 1, 0, 'n'}, {"size", 1, 0, 's'},
      {"window", 1, 0, 'c'}, {"timeout", 1, 0, 't'}, {0}};
  int option;
  while ((option = getopt_long(argc, argv, "", LONG, NULL)) != -1) {
    switch (option) {
      case 'm': if (!parse_mode(optarg)) return false; break;
      case 'h': options.host = optarg; break;
      case 'p': options.port = optarg; break;
      case 'a': options.address = optarg; break;
      case 'u': options.user = optarg; break;
      case 'w': options.password = optarg; break;
      case 'n': options.count = strtoull(optarg, NULL, 10); break;
      case 's': options.body_bytes = strtoull(optarg, NULL, 10); break;
      case 'c': options.window = atoi(optarg); break;
      case 't': options.timeout_s = atof(optarg); break;
      default: return false;
    }
  }
  return options.address && options.count && options.window > 0 && options.timeout_s > 0 &&
         options.body_bytes >= STAMP_BYTES && optind == argc;
}

int main(int argc, char **argv) {
  if (!parse_options(argc, argv)) return usage(argv[0]);
  static peer sender = {.role = "sender", .fd = -1}, receiver = {.role = "receiver", .fd = -1};
  deadline_ns = now_ns() + (uint64_t)(options.timeout_s * 1e9);
  pthread_barrier_init(&both_attached, NULL, options.mode == BOTH ? 2 : 1);
  pthread_t threads[2];
  int running = 0;
  if (options.mode & (RECEIVE | DRAIN)) {
    receiver.seen = allocate(options.count, sizeof *receiver.seen);
    receiver.incoming = allocate(options.body_bytes + 4 * OVERHEAD_BYTES, 1);
    receiver.latency.us = allocate(options.count, sizeof *receiver.latency.us);
    pthread_create(&threads[running++], NULL, run_peer, &receiver);
  }
  if (options.mode & SEND) {
    sender.sent_ns = allocate(options.count, sizeof *sender.sent_ns);
    sender.latency.us = allocate(options.count, sizeof *sender.latency.us);
    build_message(&sender);
    pthread_create(&threads[running++], NULL, run_peer, &sender);
  }
  while (running) pthread_join(threads[--running], NULL);
  return report(&sender, &receiver) ? 0 : 1;
}

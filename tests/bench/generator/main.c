/* A neutral AMQP 1.0 load generator: the same client for every broker under test.
 *
 * One rule: nothing here knows which broker is at the other end. Connections are plain Qpid Proton. Senders
 * have one thread and receivers another, so neither waits for the other inside the client; a thread drives
 * all connections of its side. Prints one line of JSON and exits 0 when every message arrived once, 1 when
 * something went wrong, 2 when called wrongly. Driven by load.py; options: usage().
 *
 *     messages.c      what is sent
 *     links.c         senders and receivers
 *     transactions.c  receive, complete and send on in one transaction
 *     connections.c   sockets, TLS, the loop of a thread
 *
 *     cc -O2 -pthread *.c -o load $(pkg-config --cflags --libs libqpid-proton)
 */
#include "load.h"

#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static const uint64_t SECOND_NS = 1000000000u;

load_options options = {.mode = BOTH, .mode_name = "both", .host = "127.0.0.1", .count = 100000,
                        .body_bytes = 1024, .properties = 2, .transactions = 1, .window = 500, .connections = 1,
                        .links = 1, .timeout_s = 120.0};
_Atomic uint64_t begin_ns;
uint64_t deadline_ns;
atomic_bool stop;

uint64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (uint64_t)at.tv_sec * SECOND_NS + (uint64_t)at.tv_nsec;
}

void fail(role *r, const char *format, ...) {
  if (!r->error[0]) { /* the first error is the cause, the rest its consequences */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->error, sizeof r->error, format, arguments);
    va_end(arguments);
  }
  atomic_store(&stop, true);
}

void fail_condition(role *r, const char *where, pn_condition_t *condition) {
  const char *name = pn_condition_get_name(condition), *description = pn_condition_get_description(condition);
  fail(r, "%s: %s: %s", where, name ? name : "no reason given", description ? description : "");
}

void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) {
    perror("calloc");
    exit(1);
  }
  return memory;
}

void finish(role *r) {
  if (r->finished) return;
  r->finished = true;
  r->finished_ns = now_ns();
}

void note_latency(latencies *l, uint64_t since_ns, uint64_t until_ns) {
  l->us[l->count++] = (uint32_t)((until_ns - since_ns) / 1000);
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

static double seconds_of(const role *r) {
  uint64_t until = r->finished ? r->finished_ns : now_ns(), begin = atomic_load(&begin_ns);
  return begin && until > begin ? (double)(until - begin) / 1e9 : 0.0;
}

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* `rate` counts messages, however many subscriptions each went to; `delivery_rate` counts deliveries. */
static bool report(role *sender, role *receiver) {
  bool sends = options.mode & SEND, receives = options.mode & (RECEIVE | DRAIN | TRANSACT);
  bool counts = options.mode & (RECEIVE | TRANSACT);
  double send_s = sends ? seconds_of(sender) : 0, receive_s = receives ? seconds_of(receiver) : 0;
  double seconds = send_s > receive_s ? send_s : receive_s;
  size_t moved = !receives ? sender->accepted : options.mode == TRANSACT ? receiver->accepted : receiver->received;
  size_t missing = counts ? options.count * options.source_count - receiver->distinct : 0;
  double deliveries = seconds > 0 ? (double)moved / seconds : 0.0;

  printf("{\"mode\": \"%s\", \"window\": %d, \"body_bytes\": %zu, ", options.mode_name, options.window,
         options.body_bytes);
  if (sends) printf("\"accepted\": %zu, \"send_seconds\": %.6f, ", sender->accepted, send_s);
  if (receives) printf("\"received\": %zu, \"receive_seconds\": %.6f, ", receiver->received, receive_s);
  if (receives && options.next_session) printf("\"sessions_taken\": %zu, ", receiver->sessions_taken);
  if (sends) print_latency("ack", &sender->latency);
  if (options.mode & RECEIVE) print_latency("end_to_end", &receiver->latency);
  if (options.mode == TRANSACT) print_latency("transaction", &receiver->latency);
  printf("\"seconds\": %.6f, \"rate\": %.1f, \"delivery_rate\": %.1f, \"client_cpu_s\": %.3f, ", seconds,
         receives && !(options.mode & DRAIN) ? deliveries / (double)options.source_count : deliveries, deliveries,
         cpu_seconds());
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
          "usage: %s --address A [--mode send|receive|both|drain|transact] [--host H] --port P... [--tls]\n"
          "       [--user U --password W] [--count N] [--size BODY_BYTES] [--window W] [--timeout S]\n"
          "       [--from A]... [--credit N] [--connections N] [--links N] [--settled]\n"
          "       [--keys N [--half-keyed]] [--sessions N] [--next-session [--keep-session]] [--batch N]\n"
          "       [--properties N] [--id-property NAME] [--backlog] [--to A --transactions N]\n"
          "drain receives whatever waits, until the broker says there is no more.\n"
          "transact receives N messages and, in a transaction for each, completes it and sends it on.\n"
          "Without --user the connection is ANONYMOUS; with --tls any certificate will do.\n"
          "  --port P          repeated: the ports of several brokers, and connections take turns\n"
          "  --from A          receive from here and not from --address; repeated: each gets all messages\n"
          "  --credit N        of each receiver, if not as many as the window\n"
          "  --connections N   so many senders, and so many receivers of each source; a window for each\n"
          "  --links N         so many receivers on each connection\n"
          "  --settled         receive and delete: the broker settles when it delivers\n"
          "  --keys N          N partition keys, in the annotation x-opt-partition-key\n"
          "  --half-keyed      the second half of the connections sends without keys\n"
          "  --sessions N      N session ids, in group-id\n"
          "  --next-session    receivers take the next free session, and another when it has no more\n"
          "  --keep-session    they keep the first session they get\n"
          "  --batch N         N messages to a transfer, in the batch format of Service Bus\n"
          "  --properties N    application properties, at most %d\n"
          "  --id-property P   an application property with the message-id's digits\n"
          "  --backlog         messages wait already: receive as many as --count says, whichever they are\n"
          "  --to A            transact: where the messages go\n"
          "  --transactions N  transact: so many under way at once\n",
          program, PROPERTIES_MAX);
  return 2;
}

static bool parse_mode(const char *name) {
  static const struct { const char *name; run_mode mode; } MODES[] = {
      {"send", SEND}, {"receive", RECEIVE}, {"both", BOTH}, {"drain", DRAIN}, {"transact", TRANSACT}};
  for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
    if (strcmp(name, MODES[i].name)) continue;
    options.mode = MODES[i].mode;
    options.mode_name = MODES[i].name;
    return true;
  }
  return false;
}

static bool add_source(const char *address) {
  if (options.source_count == SOURCES_MAX) return false;
  options.sources[options.source_count++] = address;
  return true;
}

static bool add_port(const char *port) {
  if (options.port_count == PORTS_MAX) return false;
  options.ports[options.port_count++] = port;
  return true;
}

static bool parse_option(int option, const char *value) {
  switch (option) {
    case 'm': return parse_mode(value);
    case 'h': options.host = value; return true;
    case 'p': return add_port(value);
    case 'a': options.address = value; return true;
    case 'u': options.user = value; return true;
    case 'w': options.password = value; return true;
    case 'n': options.count = strtoull(value, NULL, 10); return true;
    case 's': options.body_bytes = strtoull(value, NULL, 10); return true;
    case 'c': options.window = atoi(value); return true;
    case 't': options.timeout_s = atof(value); return true;
    case 'f': return add_source(value);
    case 'r': options.credit = atoi(value); return true;
    case 'C': options.connections = atoi(value); return true;
    case 'L': options.links = atoi(value); return true;
    case 'd': options.settled = true; return true;
    case 'T': options.tls = true; return true;
    case 'k': options.keys = strtoull(value, NULL, 10); return true;
    case 'H': options.half_keyed = true; return true;
    case 'S': options.sessions = strtoull(value, NULL, 10); return true;
    case 'x': options.next_session = true; return true;
    case 'K': options.keep_session = true; return true;
    case 'b': options.batch = strtoull(value, NULL, 10); return true;
    case 'P': options.properties = strtoull(value, NULL, 10); return true;
    case 'i': options.id_property = value; return true;
    case 'B': options.backlog = true; return true;
    case 'o': options.target = value; return true;
    case 'X': options.transactions = strtoull(value, NULL, 10); return true;
    default: return false;
  }
}

/* Whether the options fit together. Those of the side that is not there are allowed, for the caller's ease. */
static bool options_fit(void) {
  if (!options.address || !options.port_count || !options.count || options.window < 1 || options.credit < 1) return false;
  if (options.timeout_s <= 0 || options.body_bytes < STAMP_BYTES || options.properties > PROPERTIES_MAX) return false;
  if (options.connections < 1 || options.links < 1) return false;
  if (options.batch && (options.count % options.batch || options.tls)) return false;
  if (options.keep_session && !options.next_session) return false;
  if (options.half_keyed && (!options.keys || options.batch)) return false;
  bool transacts = options.mode == TRANSACT;
  if (transacts != (options.target != NULL)) return false;
  if (options.transactions < 1 || options.transactions > TRANSACTIONS_MAX) return false;
  return !transacts || (options.source_count == 1 && options.connections == 1 && options.links == 1 &&
                        !options.batch && !options.settled && !options.next_session);
}

static bool parse_options(int argc, char **argv) {
  static const struct option LONG[] = {
      {"mode", 1, 0, 'm'},        {"host", 1, 0, 'h'},         {"port", 1, 0, 'p'},
      {"address", 1, 0, 'a'},     {"user", 1, 0, 'u'},         {"password", 1, 0, 'w'},
      {"count", 1, 0, 'n'},       {"size", 1, 0, 's'},         {"window", 1, 0, 'c'},
      {"timeout", 1, 0, 't'},     {"from", 1, 0, 'f'},         {"credit", 1, 0, 'r'},         {"connections", 1, 0, 'C'},
      {"links", 1, 0, 'L'},       {"settled", 0, 0, 'd'},      {"tls", 0, 0, 'T'},
      {"keys", 1, 0, 'k'},        {"sessions", 1, 0, 'S'},     {"next-session", 0, 0, 'x'},
      {"keep-session", 0, 0, 'K'}, {"batch", 1, 0, 'b'},       {"properties", 1, 0, 'P'},
      {"id-property", 1, 0, 'i'}, {"to", 1, 0, 'o'},           {"transactions", 1, 0, 'X'},
      {"backlog", 0, 0, 'B'},     {"half-keyed", 0, 0, 'H'},  {0}};
  int option;
  while ((option = getopt_long(argc, argv, "", LONG, NULL)) != -1) {
    if (!parse_option(option, optarg)) return false;
  }
  if (!options.source_count && options.address) add_source(options.address);
  if (!options.credit) options.credit = options.window;
  return optind == argc && options_fit();
}

/* ---- the sides ------------------------------------------------------------------------------ */

static void make_peers(role *r, size_t count) {
  r->peer_count = count;
  r->peers = allocate(count, sizeof *r->peers);
  for (size_t i = 0; i < count; i++) r->peers[i] = (peer){.role = r, .fd = -1};
}

static void make_sender(role *r) {
  r->mode = SEND;
  r->sent_ns = allocate(options.count, sizeof *r->sent_ns);
  r->latency.us = allocate(options.count, sizeof *r->latency.us);
  bool built = build_transfer(&r->transfer, options.keys > 0);
  if (!built || (options.half_keyed && !build_transfer(&r->keyless, false))) fail(r, "cannot encode the message");
  make_peers(r, (size_t)options.connections);
}

static void make_receiver(role *r) {
  r->mode = options.mode & (DRAIN | TRANSACT) ? options.mode : RECEIVE;
  r->incoming = allocate(options.body_bytes + 4 * OVERHEAD_BYTES, 1);
  r->sources = allocate(options.source_count, sizeof *r->sources);
  for (size_t i = 0; i < options.source_count; i++) {
    r->sources[i] = (source){options.sources[i], allocate(options.count, 1)};
  }
  r->latency.us = allocate(options.count * options.source_count, sizeof *r->latency.us);
  if (r->mode == TRANSACT && !build_transfer(&r->transfer, options.keys > 0)) fail(r, "cannot encode the message");
  make_peers(r, options.source_count * (size_t)options.connections);
  for (size_t i = 0; i < r->peer_count; i++) r->peers[i].source = &r->sources[i % options.source_count];
}

/* How many links must be attached before anything begins. */
static size_t links_to_await(void) {
  enum { LINKS_OF_A_TRANSACTOR = 3 };
  if (options.mode == TRANSACT) return LINKS_OF_A_TRANSACTOR;
  size_t connections = (size_t)options.connections, senders = options.mode & SEND ? connections : 0;
  size_t receivers = connections * options.source_count * (size_t)options.links;
  return senders + (options.mode & (RECEIVE | DRAIN) ? receivers : 0);
}

int main(int argc, char **argv) {
  if (!parse_options(argc, argv)) return usage(argv[0]);
  static role sender = {.name = "sender"}, receiver = {.name = "receiver"};
  deadline_ns = now_ns() + (uint64_t)(options.timeout_s * 1e9);
  atomic_store(&links_awaited, links_to_await());
  if (options.mode & SEND) make_sender(&sender);
  if (options.mode & (RECEIVE | DRAIN | TRANSACT)) make_receiver(&receiver);
  pthread_t threads[2];
  int running = 0;
  if (receiver.peer_count) pthread_create(&threads[running++], NULL, run_role, &receiver);
  if (sender.peer_count) pthread_create(&threads[running++], NULL, run_role, &sender);
  while (running) pthread_join(threads[--running], NULL);
  return report(&sender, &receiver) ? 0 : 1;
}

/* The connections of one side: sockets, TLS, and the loop of the thread that drives them all. */
#include "load.h"

#include <proton/sasl.h>
#include <proton/ssl.h>
#include <proton/transport.h>

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Proton hands out at most a frame at a time (16 KB); gathering several into one send() halves the
 * client's system calls without holding anything back: the buffer is flushed before every wait. */
enum { OUTPUT_BYTES = 256 * 1024, READ_BYTES = 64 * 1024, EVENTS_MAX = 64 };
/* The loop wakes at least this often, for heartbeats and for the deadline; until the begin, for the others. */
enum { POLL_MS = 500, BEGIN_POLL_MS = 1, LINGER_POLL_MS = 10 };
/* Nothing answers a receiver's accept, and a broker may drop those still in its pipeline when the
 * connection goes (RabbitMQ does, and delivers again): stay this long, outside the measured time. */
static const uint64_t LINGER_NS = 200 * 1000000u, TICK_NS = POLL_MS * 1000000u;

atomic_size_t links_awaited;
static atomic_bool receivers_connected;

/* ---- batches -------------------------------------------------------------------------------- */

static const unsigned char BATCH_FORMAT[] = {0x70, 0x80, 0x01, 0x37, 0x00}; /* uint 0x80013700 */
enum { FRAME_HEADER_BYTES = 8, FORMAT_GROWTH = sizeof BATCH_FORMAT - 1 };

static size_t frame_size(const char *head) {
  if (!memcmp(head, "AMQP", 4)) return FRAME_HEADER_BYTES; /* a protocol header */
  const unsigned char *b = (const unsigned char *)head;
  return (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
}

static void set_frame_size(char *head, size_t size) {
  for (int i = 0; i < 4; i++) head[i] = (char)(size >> (24 - 8 * i));
}

static size_t uint_bytes(char constructor) {
  return constructor == 0x43 ? 1 : constructor == 0x52 ? 2 : 5;
}

/* Proton sends message-format 0 and nothing else. Where a frame is a transfer, its fourth field becomes the
 * format of batches; returns how many bytes that adds. The head holds all of the performative. */
static size_t set_batch_format(char *head, size_t bytes) {
  static const char TRANSFER[] = {0x00, 0x53, 0x14};
  char *at = head + FRAME_HEADER_BYTES;
  if (bytes < FRAME_HEADER_BYTES + 8 || memcmp(at, TRANSFER, sizeof TRANSFER)) return 0;
  at += sizeof TRANSFER;
  if (*at == (char)0xc0) {
    at[1] = (char)(at[1] + FORMAT_GROWTH);
    at += 3;
  } else { /* 0xd0: sizes of four bytes; its own is written like a frame's */
    set_frame_size(at + 1, frame_size(at + 1) + FORMAT_GROWTH);
    at += 9;
  }
  at += uint_bytes(*at);              /* handle */
  at += uint_bytes(*at);              /* delivery-id */
  at += 2 + (size_t)(unsigned char)at[1]; /* delivery-tag */
  if (*at != 0x43) return 0;
  memmove(at + sizeof BATCH_FORMAT, at + 1, bytes - (size_t)(at + 1 - head));
  memcpy(at, BATCH_FORMAT, sizeof BATCH_FORMAT);
  set_frame_size(head, frame_size(head) + FORMAT_GROWTH);
  return FORMAT_GROWTH;
}

/* Copies Proton's output, with the format of batches in each transfer; returns how much of it was taken. */
static size_t copy_batches(peer *p, const char *from, size_t size) {
  enum { HEAD = sizeof p->head - FORMAT_GROWTH };
  size_t taken = 0;
  while (taken < size && OUTPUT_BYTES - p->output_end >= sizeof p->head) {
    if (p->frame_left) { /* the rest of a frame, unchanged */
      size_t room = OUTPUT_BYTES - p->output_end, bytes = size - taken;
      if (bytes > p->frame_left) bytes = p->frame_left;
      if (bytes > room) bytes = room;
      memcpy(p->output + p->output_end, from + taken, bytes);
      p->output_end += bytes;
      p->frame_left -= bytes;
      taken += bytes;
      continue;
    }
    p->head[p->head_bytes++] = from[taken++];
    if (p->head_bytes < FRAME_HEADER_BYTES) continue;
    size_t whole = frame_size(p->head);
    if (p->head_bytes < whole && p->head_bytes < HEAD) continue;
    size_t bytes = p->head_bytes;
    bytes += set_batch_format(p->head, bytes);
    memcpy(p->output + p->output_end, p->head, bytes);
    p->output_end += bytes;
    p->frame_left = whole - p->head_bytes;
    p->head_bytes = 0;
  }
  return taken;
}

/* ---- the socket ----------------------------------------------------------------------------- */

static bool open_socket(peer *p) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
  const char *port = options.ports[(size_t)(p - p->role->peers) % options.port_count];
  int problem = getaddrinfo(options.host, port, &hints, &found);
  if (problem) {
    fail(p->role, "%s:%s: %s", options.host, port, gai_strerror(problem));
    return false;
  }
  p->fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  bool connected = p->fd >= 0 && connect(p->fd, found->ai_addr, found->ai_addrlen) == 0;
  if (!connected) fail(p->role, "%s:%s: %s", options.host, port, strerror(errno));
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
    size_t room = OUTPUT_BYTES - p->output_end, taken;
    if (!pending.size || !room) break;
    if (options.batch && p->role->mode == SEND) {
      taken = copy_batches(p, pending.start, pending.size);
      if (!taken) break;
    } else {
      taken = pending.size < room ? pending.size : room;
      memcpy(p->output + p->output_end, pending.start, taken);
      p->output_end += taken;
    }
    pn_connection_driver_write_done(&p->driver, taken);
  }
  if (p->output_start == p->output_end) return false;
  ssize_t written = send(p->fd, p->output + p->output_start, p->output_end - p->output_start, MSG_NOSIGNAL);
  if (written < 0) {
    if (errno != EAGAIN && errno != EINTR) fail(p->role, "write: %s", strerror(errno));
    return false;
  }
  p->output_start += (size_t)written;
  if (p->output_start == p->output_end) p->output_start = p->output_end = 0;
  return true;
}

static void read_some(peer *p) {
  pn_rwbytes_t buffer = pn_connection_driver_read_buffer_sized(&p->driver, READ_BYTES);
  if (!buffer.size) return;
  ssize_t bytes = recv(p->fd, buffer.start, buffer.size, 0);
  if (bytes < 0) {
    if (errno != EAGAIN && errno != EINTR) fail(p->role, "read: %s", strerror(errno));
  } else if (bytes == 0) {
    if (!p->role->finished) fail(p->role, "the broker closed the socket");
    p->closed = true;
  } else {
    pn_connection_driver_read_done(&p->driver, (size_t)bytes);
  }
}

/* ---- the connection ------------------------------------------------------------------------- */

static void open_connection(peer *p) {
  char name[64];
  snprintf(name, sizeof name, "bench-%s-%d-%d", p->role->name, (int)getpid(), (int)(p - p->role->peers));
  pn_connection_set_container(p->driver.connection, name);
  pn_connection_set_hostname(p->driver.connection, options.host);
  pn_connection_open(p->driver.connection);
  p->session = pn_session(p->driver.connection);
  pn_session_open(p->session);
  p->role->mode == TRANSACT ? open_transactor(p) : open_links(p);
}

static void on_any_event(peer *p, pn_event_t *event) {
  role *r = p->role;
  switch (pn_event_type(event)) {
    case PN_CONNECTION_INIT:
      return open_connection(p);
    case PN_SESSION_REMOTE_CLOSE:
      if (!r->finished) fail_condition(r, "session ended", pn_session_remote_condition(p->session));
      return;
    case PN_CONNECTION_REMOTE_CLOSE:
      if (!r->finished) {
        fail_condition(r, "connection closed", pn_connection_remote_condition(p->driver.connection));
      }
      p->closed = true;
      return;
    case PN_TRANSPORT_ERROR:
      return fail_condition(r, "transport", pn_transport_condition(p->driver.transport));
    default:
      r->mode == TRANSACT ? on_transactor_event(p, event) : on_event(p, event);
  }
}

static void use_tls(peer *p) {
  static _Thread_local pn_ssl_domain_t *domain;
  if (!domain) {
    domain = pn_ssl_domain(PN_SSL_MODE_CLIENT);
    pn_ssl_domain_set_peer_authentication(domain, PN_SSL_ANONYMOUS_PEER, NULL);
  }
  pn_ssl_init(pn_ssl(p->driver.transport), domain, NULL);
}

static bool make_peer(peer *p, int events) {
  pn_connection_driver_init(&p->driver, NULL, NULL);
  pn_transport_set_max_frame(p->driver.transport, READ_BYTES); /* a frame always fits the read buffer */
  pn_sasl_t *sasl = pn_sasl(p->driver.transport);
  pn_sasl_set_allow_insecure_mechs(sasl, true); /* PLAIN without TLS: this is loopback */
  pn_sasl_allowed_mechs(sasl, options.user ? "PLAIN" : "ANONYMOUS");
  if (options.user) {
    pn_connection_set_user(p->driver.connection, options.user);
    pn_connection_set_password(p->driver.connection, options.password ? options.password : "");
  }
  if (options.tls) use_tls(p);
  p->output = allocate(OUTPUT_BYTES, 1);
  struct epoll_event wait = {.events = EPOLLIN, .data.ptr = p};
  if (!open_socket(p)) return false;
  epoll_ctl(events, EPOLL_CTL_ADD, p->fd, &wait);
  return true;
}

/* One turn of one connection: what came, what follows from it, what is to be said. */
static void turn(peer *p, int events, bool readable, uint64_t at_ns) {
  if (p->closed) return;
  role *r = p->role;
  if (readable) read_some(p);
  pn_transport_tick(p->driver.transport, (pn_timestamp_t)(at_ns / 1000000));
  bool again;
  do {
    pn_event_t *event;
    while ((event = pn_connection_driver_next_event(&p->driver))) on_any_event(p, event);
    if (r->started && r->mode == SEND) send_more(p);
    if (r->started && r->mode == TRANSACT) pump_transactions(p);
    again = write_some(p) && !p->output_end;
  } while (again && !p->closed && !atomic_load(&stop));
  bool wants_write = p->output_end > 0;
  if (wants_write != p->wants_write && !p->closed) {
    struct epoll_event wait = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = p};
    epoll_ctl(events, EPOLL_CTL_MOD, p->fd, &wait);
    p->wants_write = wants_write;
  }
  if (!p->closed) return;
  epoll_ctl(events, EPOLL_CTL_DEL, p->fd, NULL);
  r->open_count--;
}

/* ---- the loop of a side --------------------------------------------------------------------- */

static void start(role *r, int events, uint64_t at_ns) {
  r->started = true;
  for (size_t i = 0; i < r->peer_count; i++) {
    r->mode == TRANSACT ? start_transactor(&r->peers[i]) : start_links(&r->peers[i]);
    turn(&r->peers[i], events, false, at_ns);
  }
}

static void close_when_due(role *r, int events, uint64_t at_ns) {
  uint64_t linger_ns = r->mode == SEND ? 0 : LINGER_NS;
  if (!r->finished || r->closing || at_ns < r->finished_ns + linger_ns) return;
  r->closing = true;
  for (size_t i = 0; i < r->peer_count; i++) {
    pn_connection_close(r->peers[i].driver.connection);
    turn(&r->peers[i], events, false, at_ns);
  }
}

static void drive(role *r, int events) {
  uint64_t ticked_ns = now_ns();
  for (size_t i = 0; i < r->peer_count; i++) turn(&r->peers[i], events, false, ticked_ns);
  while (r->open_count && !atomic_load(&stop)) {
    struct epoll_event ready[EVENTS_MAX];
    int wait_ms = !r->started ? BEGIN_POLL_MS : r->finished ? LINGER_POLL_MS : POLL_MS;
    int count = epoll_wait(events, ready, EVENTS_MAX, wait_ms);
    uint64_t at_ns = now_ns();
    for (int i = 0; i < count; i++) turn(ready[i].data.ptr, events, ready[i].events & ~EPOLLOUT, at_ns);
    if (!r->started && atomic_load(&begin_ns)) start(r, events, at_ns);
    close_when_due(r, events, at_ns);
    if (at_ns > ticked_ns + TICK_NS) {
      ticked_ns = at_ns;
      for (size_t i = 0; i < r->peer_count; i++) {
        drain_again(&r->peers[i]);
        turn(&r->peers[i], events, false, at_ns);
      }
    }
    if (at_ns > deadline_ns) return fail(r, "not done after %.0f s", options.timeout_s);
  }
}

void *run_role(void *argument) {
  role *r = argument;
  int events = epoll_create1(0);
  bool made = true;
  /* Senders connect after the receivers: brokers that share a port by turns then have as many of each. */
  while (r->mode == SEND && options.mode & RECEIVE && !atomic_load(&receivers_connected) && !atomic_load(&stop)) {
    usleep(BEGIN_POLL_MS * 1000);
  }
  for (size_t i = 0; made && i < r->peer_count; i++) made = make_peer(&r->peers[i], events);
  if (r->mode != SEND) atomic_store(&receivers_connected, true);
  r->open_count = r->peer_count;
  if (made) drive(r, events);
  for (size_t i = 0; i < r->peer_count; i++) {
    if (r->peers[i].fd >= 0) close(r->peers[i].fd);
  }
  close(events);
  return NULL;
}

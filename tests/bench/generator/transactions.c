/* Transactions: receive a message, then complete it and send it on to another queue in one.
 *
 * One connection with one session, and on it the coordinator's link first: that is how clients of Service
 * Bus ask for transactions over several entities, and others take it as well. Each transaction waits for
 * every answer before its next step; `--transactions` of them are under way at once.
 */
#include "load.h"

#include <proton/codec.h>
#include <proton/terminus.h>

enum { DECLARED = 0x33, TRANSACTIONAL = 0x34, ID_MAX = 64 };

typedef enum { FREE, DECLARE, DECLARING, WORK, WORKING, DISCHARGE, DISCHARGING } step;

typedef struct {
  step step;
  uint64_t sequence, began_ns;
  pn_delivery_t *incoming, *outgoing, *control;
  bool completed, sent;
  char id[ID_MAX];
  size_t id_bytes;
} transaction;

struct transactor {
  pn_link_t *coordinator, *receiver, *sender;
  transaction *slots;
  size_t unfinished;
  uint64_t tags;
};

void open_transactor(peer *p) {
  transactor *t = p->transactor = allocate(1, sizeof *t);
  t->slots = allocate(options.transactions, sizeof *t->slots);
  t->coordinator = new_link(p, true);
  pn_terminus_t *target = pn_link_target(t->coordinator);
  pn_terminus_set_type(target, PN_COORDINATOR);
  static const char CAPABILITY[] = "amqp:local-transactions";
  pn_data_put_symbol(pn_terminus_capabilities(target), pn_bytes(sizeof CAPABILITY - 1, CAPABILITY));
  pn_link_open(t->coordinator);
  t->receiver = new_link(p, false);
  pn_terminus_set_address(pn_link_source(t->receiver), options.sources[0]);
  pn_link_open(t->receiver);
  t->sender = new_link(p, true);
  pn_terminus_set_address(pn_link_target(t->sender), options.target);
  pn_link_open(t->sender);
}

void start_transactor(peer *p) { pn_link_flow(p->transactor->receiver, (int)options.transactions); }

/* ---- sending the steps ---------------------------------------------------------------------- */

/* The state of a delivery within a transaction, with the outcome that it asks for if it has one. */
static void set_state(pn_delivery_t *delivery, const transaction *of, uint64_t outcome) {
  pn_data_t *data = pn_disposition_data(pn_delivery_local(delivery));
  pn_data_clear(data);
  pn_data_put_list(data);
  pn_data_enter(data);
  pn_data_put_binary(data, pn_bytes(of->id_bytes, of->id));
  if (outcome) {
    pn_data_put_described(data);
    pn_data_enter(data);
    pn_data_put_ulong(data, outcome);
    pn_data_put_list(data);
    pn_data_exit(data);
  }
  pn_data_exit(data);
  pn_delivery_update(delivery, TRANSACTIONAL);
}

static pn_delivery_t *new_delivery(transactor *t, pn_link_t *link, transaction *of) {
  uint64_t tag = t->tags++;
  pn_delivery_t *delivery = pn_delivery(link, pn_dtag((const char *)&tag, sizeof tag));
  pn_delivery_set_context(delivery, of);
  return delivery;
}

static void send_control(transactor *t, transaction *of, const char *bytes, size_t size) {
  of->control = new_delivery(t, t->coordinator, of);
  pn_link_send(t->coordinator, bytes, size);
  pn_link_advance(t->coordinator);
}

static void declare(transactor *t, transaction *of) {
  static const char DECLARE_MESSAGE[] = {0x00, 0x53, 0x77, 0x00, 0x53, 0x31, 0x45}; /* a value: declare [] */
  send_control(t, of, DECLARE_MESSAGE, sizeof DECLARE_MESSAGE);
  of->step = DECLARING;
}

static void work(peer *p, transaction *of) {
  transactor *t = p->transactor;
  of->completed = of->sent = false;
  set_state(of->incoming, of, PN_ACCEPTED);
  of->outgoing = new_delivery(t, t->sender, of);
  set_state(of->outgoing, of, 0);
  stamp_transfer(&p->role->transfer, of->sequence, of->began_ns);
  pn_link_send(t->sender, p->role->transfer.bytes, p->role->transfer.size);
  pn_link_advance(t->sender);
  of->step = WORKING;
}

static void discharge(transactor *t, transaction *of) {
  char message[16 + ID_MAX] = {0x00, 0x53, 0x77, 0x00, 0x53, 0x32, (char)0xc0, (char)(of->id_bytes + 4), 2,
                               (char)0xa0, (char)of->id_bytes}; /* a value: discharge [id, false] */
  memcpy(message + 11, of->id, of->id_bytes);
  message[11 + of->id_bytes] = 0x42;
  send_control(t, of, message, 12 + of->id_bytes);
  of->step = DISCHARGING;
}

/* Takes each transaction as far as the credit of its links allows. */
void pump_transactions(peer *p) {
  transactor *t = p->transactor;
  for (size_t i = 0; i < options.transactions && t->unfinished; i++) {
    transaction *of = &t->slots[i];
    if (of->step == DECLARE && pn_link_credit(t->coordinator) > 0) declare(t, of);
    if (of->step == WORK && pn_link_credit(t->sender) > 0) work(p, of);
    if (of->step == DISCHARGE && pn_link_credit(t->coordinator) > 0) discharge(t, of);
  }
}

/* ---- answers -------------------------------------------------------------------------------- */

static void on_message(peer *p, pn_delivery_t *delivery) {
  if (!pn_delivery_readable(delivery) || pn_delivery_partial(delivery)) return;
  transactor *t = p->transactor;
  role *r = p->role;
  size_t pending = pn_delivery_pending(delivery);
  if (pending > options.body_bytes + 4 * OVERHEAD_BYTES) return fail(r, "a message of %zu bytes", pending);
  ssize_t bytes = pn_link_recv(t->receiver, r->incoming, pending);
  pn_link_advance(t->receiver);
  uint64_t sequence, sent_at_ns;
  if (bytes <= 0 || !read_stamp(r->incoming, (size_t)bytes, &sequence, &sent_at_ns)) {
    r->foreign++;
    return fail(r, "a message of another run");
  }
  r->received++;
  if (r->sources[0].seen[sequence]++) r->duplicates++;
  transaction *of = t->slots;
  while (of->step != FREE) of++; /* never more than were given credit */
  *of = (transaction){.step = DECLARE, .sequence = sequence, .began_ns = now_ns(), .incoming = delivery};
  pn_delivery_set_context(delivery, of);
  t->unfinished++;
}

static bool read_id(pn_delivery_t *delivery, transaction *of) {
  pn_data_t *data = pn_disposition_data(pn_delivery_remote(delivery));
  pn_data_rewind(data);
  if (!pn_data_next(data) || pn_data_type(data) != PN_LIST || !pn_data_enter(data) || !pn_data_next(data)) {
    return false;
  }
  pn_bytes_t id = pn_data_get_binary(data);
  if (!id.size || id.size > ID_MAX) return false;
  memcpy(of->id, id.start, id.size);
  of->id_bytes = id.size;
  return true;
}

static void end(peer *p, transaction *of) {
  role *r = p->role;
  transactor *t = p->transactor;
  pn_delivery_settle(of->incoming);
  pn_delivery_settle(of->outgoing);
  note_latency(&r->latency, of->began_ns, now_ns());
  of->step = FREE;
  t->unfinished--;
  r->accepted++;
  r->distinct++;
  if (r->accepted == options.count) return finish(r);
  pn_link_flow(t->receiver, 1);
}

static void refuse(role *r, pn_delivery_t *delivery, const char *what) {
  pn_condition_t *condition = pn_disposition_condition(pn_delivery_remote(delivery));
  if (pn_condition_is_set(condition)) fail_condition(r, what, condition);
  fail(r, "%s: state 0x%llx", what, (unsigned long long)pn_delivery_remote_state(delivery));
}

static void on_control(peer *p, pn_delivery_t *delivery, transaction *of) {
  uint64_t state = pn_delivery_remote_state(delivery);
  if (of->step == DECLARING) {
    if (state != DECLARED || !read_id(delivery, of)) return refuse(p->role, delivery, "declare refused");
    of->step = WORK;
    pn_delivery_settle(delivery);
  } else if (of->step == DISCHARGING) {
    if (state != PN_ACCEPTED) return refuse(p->role, delivery, "discharge refused");
    pn_delivery_settle(delivery);
    end(p, of);
  }
}

static void on_delivery(peer *p, pn_delivery_t *delivery) {
  transactor *t = p->transactor;
  pn_link_t *link = pn_delivery_link(delivery);
  transaction *of = pn_delivery_get_context(delivery);
  if (link == t->receiver && !of) return on_message(p, delivery);
  uint64_t state = pn_delivery_remote_state(delivery);
  if (!of || !pn_delivery_updated(delivery) || !(state || pn_delivery_settled(delivery))) return;
  if (link == t->coordinator) return on_control(p, delivery, of);
  if (of->step != WORKING) return pn_delivery_clear(delivery); /* settled by the broker after the commit */
  if (state && state != TRANSACTIONAL && state != PN_ACCEPTED) return refuse(p->role, delivery, "work refused");
  if (link == t->receiver) of->completed = true;
  if (link == t->sender) of->sent = true;
  if (of->completed && of->sent) of->step = DISCHARGE;
  pn_delivery_clear(delivery);
}

void on_transactor_event(peer *p, pn_event_t *event) {
  switch (pn_event_type(event)) {
    case PN_LINK_REMOTE_OPEN:
      return link_attached();
    case PN_DELIVERY:
      return on_delivery(p, pn_event_delivery(event));
    case PN_LINK_REMOTE_CLOSE:
    case PN_LINK_REMOTE_DETACH:
      if (!p->role->finished) {
        fail_condition(p->role, "link closed", pn_link_remote_condition(pn_event_link(event)));
      }
      return;
    default:
      return;
  }
}

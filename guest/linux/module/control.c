// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The control queue of a card. Both halves send commands through it: virtio_net
 * those of the Ethernet half, the RDMA device those of class 6.
 *
 * A request and its result are in memory of the command's own. If the device
 * does not answer in time, the card is broken, and all commands fail. Their memory
 * stays allocated until the device answers or is reset, because it may still write.
 */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "vroce.h"

/* The longest time of a command, in milliseconds, if its caller sleeps and if its caller spins. */
#define SLEEP_LIMIT 10000
#define SPIN_LIMIT   5000

#define CLASS_ROCE 6

struct vroce_control {
	spinlock_t lock;         /* of the virtqueue, and the states of commands */
	struct virtqueue *vq;
	wait_queue_head_t answers;
};

enum command_state {
	COMMAND_WAITS,     /* the device has it */
	COMMAND_ANSWERED,
	COMMAND_CANCELLED, /* the device was reset, and the caller has not seen it yet */
	COMMAND_ABANDONED, /* the device has it, and no caller waits: it is freed when it leaves the ring */
};

/* One command. The device reads out and writes in. */
struct command {
	enum command_state state;
	u32 used;                /* octets that the device wrote, as it states */
	u32 in_length;
	u8 *in;
	u8 out[];
};

/* Ends a command that was taken from the ring. The caller holds control->lock. */
static void end_command(struct command *c, enum command_state state)
{
	if (c->state == COMMAND_ABANDONED)
		kfree(c);
	else
		smp_store_release(&c->state, state);
}

/* Takes in all answers of the device. The caller holds control->lock. */
static void reap(struct vroce_control *control)
{
	struct command *c;
	unsigned int used;

	while ((c = virtqueue_get_buf(control->vq, &used))) {
		c->used = min(used, c->in_length);
		end_command(c, COMMAND_ANSWERED);
	}
	wake_up_all(&control->answers);
}

/* The callback of the virtqueue, in interrupt context. */
void vroce_control_interrupt(struct virtqueue *vq)
{
	struct vroce_card *card = vq->vdev->priv;
	struct vroce_control *control = card->control;
	unsigned long flags;

	spin_lock_irqsave(&control->lock, flags);
	if (control->vq)
		reap(control);
	spin_unlock_irqrestore(&control->lock, flags);
}

static int submit(struct vroce_card *card, struct command *c, size_t out_length, struct scatterlist *list)
{
	struct vroce_control *control = card->control;
	struct scatterlist out, in, *sgs[3];
	unsigned int outs = 0;
	unsigned long flags;
	bool lied = false;
	int err;

	sg_init_one(&out, c->out, out_length);
	sg_init_one(&in, c->in, c->in_length);
	sgs[outs++] = &out;
	if (list)
		sgs[outs++] = list;
	sgs[outs] = &in;

	spin_lock_irqsave(&control->lock, flags);
	if (control->vq && !READ_ONCE(card->broken)) {
		reap(control);
		err = virtqueue_add_sgs(control->vq, sgs, outs, 1, c, GFP_ATOMIC);
		if (!err)
			virtqueue_kick(control->vq);
		lied = virtqueue_is_broken(control->vq);
	} else {
		err = -EIO;
	}
	spin_unlock_irqrestore(&control->lock, flags);
	if (lied)
		vroce_break(card, "it used a buffer that its control queue does not have");
	return err;
}

/* Reports whether nothing more will happen to c. */
static bool is_over(struct vroce_card *card, struct command *c)
{
	return smp_load_acquire(&c->state) != COMMAND_WAITS || READ_ONCE(card->broken);
}

static void spin_until_over(struct vroce_card *card, struct command *c)
{
	struct vroce_control *control = card->control;
	ktime_t end = ktime_add_ms(ktime_get(), SPIN_LIMIT);
	unsigned long flags;

	while (!is_over(card, c) && ktime_before(ktime_get(), end)) {
		cpu_relax();
		spin_lock_irqsave(&control->lock, flags);
		if (control->vq)
			reap(control);
		spin_unlock_irqrestore(&control->lock, flags);
	}
}

/* Returns how c ended. A command that the device still has is not the caller's any more. */
static enum command_state finish(struct vroce_control *control, struct command *c)
{
	enum command_state state;
	unsigned long flags;

	spin_lock_irqsave(&control->lock, flags);
	if (control->vq)
		reap(control);
	if (c->state == COMMAND_WAITS)
		c->state = COMMAND_ABANDONED;
	state = c->state;
	spin_unlock_irqrestore(&control->lock, flags);
	return state;
}

/* A full ring has room again as soon as the device has answered something. */
static int submit_when_possible(struct vroce_card *card, struct command *c, size_t out_length,
				struct scatterlist *list, bool atomic)
{
	ktime_t end = ktime_add_ms(ktime_get(), atomic ? SPIN_LIMIT : SLEEP_LIMIT);
	int err;

	while ((err = submit(card, c, out_length, list)) == -ENOSPC && ktime_before(ktime_get(), end)) {
		if (atomic)
			cpu_relax();
		else
			usleep_range(20, 100);
	}
	if (err != -ENOSPC)
		return err;
	vroce_break(card, "its control queue stays full");
	return -ETIMEDOUT;
}

/* Executes c. Unless it returns 0, c is not the caller's any more. */
static int execute(struct vroce_card *card, struct command *c, size_t out_length, struct scatterlist *list,
		   bool atomic)
{
	struct vroce_control *control = card->control;
	int err = submit_when_possible(card, c, out_length, list, atomic);

	if (err) {
		kfree(c);
		return err;
	}
	if (atomic)
		spin_until_over(card, c);
	else
		wait_event_timeout(control->answers, is_over(card, c), msecs_to_jiffies(SLEEP_LIMIT));
	switch (finish(control, c)) {
	case COMMAND_ANSWERED:
		return 0;
	case COMMAND_CANCELLED:
		kfree(c);
		return -EIO;
	default:
		if (READ_ONCE(card->broken))
			return -EIO;
		vroce_break(card, "it does not answer a command");
		return -ETIMEDOUT;
	}
}

static struct command *new_command(size_t out_length, size_t in_length, bool atomic)
{
	size_t in_at = ALIGN(out_length, 8);
	struct command *c = kzalloc(struct_size(c, out, in_at + in_length), atomic ? GFP_ATOMIC : GFP_KERNEL);

	if (!c)
		return NULL;
	c->in = c->out + in_at;
	c->in_length = in_length;
	return c;
}

int vroce_command(struct vroce_card *card, u8 command, const void *request, size_t request_length,
		  struct scatterlist *list, unsigned int list_count,
		  void *result, size_t result_length, bool atomic)
{
	struct command *c = new_command(2 + request_length, 1 + result_length, atomic);
	int err;

	if (!c)
		return -ENOMEM;
	c->out[0] = CLASS_ROCE;
	c->out[1] = command;
	memcpy(c->out + 2, request, request_length);
	c->in[0] = EIO;
	err = execute(card, c, 2 + request_length, list_count ? list : NULL, atomic);
	if (err)
		return err;

	if (c->used < 1 || (c->in[0] == 0 && c->used < 1 + result_length)) {
		vroce_break(card, "it answered a command with too little");
		err = -EIO;
	} else if (c->in[0] == 1 && !card->errno_acks) {
		err = -EINVAL;
	} else if (c->in[0]) {
		err = -(int)c->in[0];
	} else {
		memcpy(result, c->in + 1, result_length);
	}
	kfree(c);
	return err;
}

/*
 * Executes a command of virtio_net's. out and in are the two parts of its chain.
 * Returns how many octets of in are written: none if the command did not reach
 * the device.
 */
u32 vroce_control_forward(struct vroce_card *card, struct iov_part *out, unsigned int outs,
			  struct iov_part *in, unsigned int ins)
{
	size_t out_length = 0, in_length = 0, at = 0;
	struct command *c;
	unsigned int i;
	u32 used;

	for (i = 0; i < outs; i++)
		out_length += out[i].length;
	for (i = 0; i < ins; i++)
		in_length += in[i].length;
	c = new_command(out_length, in_length, true);
	if (!c)
		return 0;
	for (i = 0; i < outs; i++) {
		memcpy(c->out + at, out[i].start, out[i].length);
		at += out[i].length;
	}
	if (c->out[0] == CLASS_ROCE) { /* of the other half */
		kfree(c);
		return 0;
	}
	if (execute(card, c, out_length, NULL, true))
		return 0;
	for (i = 0, at = 0; i < ins && at < c->used; i++) {
		size_t n = min_t(size_t, in[i].length, c->used - at);

		memcpy(in[i].start, c->in + at, n);
		at += n;
	}
	used = c->used;
	kfree(c);
	return used;
}

int vroce_control_init(struct vroce_card *card)
{
	card->control = kzalloc(sizeof(*card->control), GFP_KERNEL);
	if (!card->control)
		return -ENOMEM;
	spin_lock_init(&card->control->lock);
	init_waitqueue_head(&card->control->answers);
	return 0;
}

void vroce_control_start(struct vroce_card *card, struct virtqueue *vq)
{
	unsigned long flags;

	spin_lock_irqsave(&card->control->lock, flags);
	card->control->vq = vq;
	spin_unlock_irqrestore(&card->control->lock, flags);
}

/* The card is broken: wakes the callers that wait for an answer, which does not come. Any context. */
void vroce_control_break(struct vroce_card *card)
{
	wake_up_all(&card->control->answers);
}

/* Ends the use of the virtqueue. The device is reset, so that it writes no answer any more. */
void vroce_control_stop(struct vroce_card *card)
{
	struct vroce_control *control = card->control;
	struct command *c;
	unsigned long flags;

	spin_lock_irqsave(&control->lock, flags);
	if (control->vq) {
		reap(control);
		while ((c = virtqueue_detach_unused_buf(control->vq)))
			end_command(c, COMMAND_CANCELLED);
		control->vq = NULL;
	}
	spin_unlock_irqrestore(&control->lock, flags);
	wake_up_all(&control->answers);
}

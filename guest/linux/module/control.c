// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The control queue of a card. Both halves send commands through it: virtio_net
 * those of the Ethernet half, the RDMA device those of class 6.
 *
 * A request and its result are in memory of the command's own. If the device
 * does not answer in time, the card is broken: that memory stays allocated until
 * the device is reset, because the device may still write to it.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "vroce.h"

/* How long a command may take, in milliseconds, where the caller sleeps and where it spins. */
#define SLEEP_LIMIT 10000
#define SPIN_LIMIT   5000

#define CLASS_ROCE 6

struct vroce_control {
	spinlock_t lock;         /* of the virtqueue */
	struct virtqueue *vq;
};

/* One command. The device reads out and writes in. */
struct command {
	struct completion done;
	u32 used;                /* octets that the device wrote, as it states */
	u32 in_length;
	u8 *in;
	u8 out[];
};

/* Takes in all answers of the device. The caller holds control->lock. */
static void reap(struct vroce_control *control)
{
	struct command *c;
	unsigned int used;

	while ((c = virtqueue_get_buf(control->vq, &used))) {
		c->used = min(used, c->in_length);
		complete(&c->done);
	}
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
	} else {
		err = -EIO;
	}
	spin_unlock_irqrestore(&control->lock, flags);
	return err;
}

static bool spin_until_done(struct vroce_control *control, struct command *c)
{
	ktime_t end = ktime_add_ms(ktime_get(), SPIN_LIMIT);
	unsigned long flags;

	while (!try_wait_for_completion(&c->done)) {
		if (ktime_after(ktime_get(), end))
			return false;
		cpu_relax();
		spin_lock_irqsave(&control->lock, flags);
		if (control->vq)
			reap(control);
		spin_unlock_irqrestore(&control->lock, flags);
	}
	return true;
}

/* Executes c, and frees it unless it returns 0. */
static int execute(struct vroce_card *card, struct command *c, size_t out_length, struct scatterlist *list,
		   bool atomic)
{
	ktime_t end = ktime_add_ms(ktime_get(), atomic ? SPIN_LIMIT : SLEEP_LIMIT);
	bool done;
	int err;

	/* A full ring has room again as soon as the device has answered something. */
	while ((err = submit(card, c, out_length, list)) == -ENOSPC && ktime_before(ktime_get(), end)) {
		if (atomic)
			cpu_relax();
		else
			usleep_range(20, 100);
	}
	if (err == -ENOSPC) {
		vroce_break(card, "its control queue stays full");
		err = -ETIMEDOUT;
	}
	if (err) {
		kfree(c);
		return err;
	}
	if (atomic)
		done = spin_until_done(card->control, c);
	else
		done = wait_for_completion_timeout(&c->done, msecs_to_jiffies(SLEEP_LIMIT));
	if (!done) {
		vroce_break(card, "it does not answer a command");
		return -ETIMEDOUT; /* vroce_control_stop frees c */
	}
	return 0;
}

static struct command *new_command(size_t out_length, size_t in_length, bool atomic)
{
	size_t in_at = ALIGN(out_length, 8);
	struct command *c = kzalloc(struct_size(c, out, in_at + in_length), atomic ? GFP_ATOMIC : GFP_KERNEL);

	if (!c)
		return NULL;
	init_completion(&c->done);
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
	return 0;
}

void vroce_control_start(struct vroce_card *card, struct virtqueue *vq)
{
	unsigned long flags;

	spin_lock_irqsave(&card->control->lock, flags);
	card->control->vq = vq;
	spin_unlock_irqrestore(&card->control->lock, flags);
}

/* Ends the use of the virtqueue. The device is reset, so that it writes no answer any more. */
void vroce_control_stop(struct vroce_card *card)
{
	struct vroce_control *control = card->control;
	struct virtqueue *vq;
	struct command *c;
	unsigned long flags;

	spin_lock_irqsave(&control->lock, flags);
	vq = control->vq;
	control->vq = NULL;
	spin_unlock_irqrestore(&control->lock, flags);
	if (!vq)
		return;
	/* Answers that came too late, then commands without an answer. No caller waits for either. */
	while ((c = virtqueue_get_buf(vq, &(unsigned int){0})))
		kfree(c);
	while ((c = virtqueue_detach_unused_buf(vq)))
		kfree(c);
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "vroce.h"
int vroce_verbs_add(struct vroce_card *card, struct net_device *netdev) { card->verbs = (void *)1; dev_info(&card->vdev->dev, "verbs add %s\n", netdev->name); return 0; }
void vroce_verbs_remove(struct vroce_card *card) { if (card->verbs) dev_info(&card->vdev->dev, "verbs remove\n"); card->verbs = NULL; }
void vroce_verbs_interrupt(struct vroce_card *card, u32 cq) { }
void vroce_verbs_config_changed(struct vroce_card *card) { }

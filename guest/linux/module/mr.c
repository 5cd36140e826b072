// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory regions: all memory (for the kernel), pages of a program, and regions
 * that a work request registers.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "verbs.h"
#include "vroce_compat.h"

/* Access rights that the device knows. */
#define ACCESS (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC)

/* A list of pages is sent in pieces of whole pages, each contiguous. */
#define PIECE_MAX (PAGE_SIZE << 5)
#define MAX_PAGES 262144 /* the limit of a list */

/*
 * Returns the page size that the device takes a list of pages for: the smallest one
 * of sizes, at most size, with which the region has as many pages as with size.
 */
static unsigned long meant_page_size(u64 sizes, unsigned long size, u64 address, u64 length)
{
	u64 last = address + length - 1;
	unsigned int bit;

	for (bit = 12; BIT_ULL(bit) < size; bit++)
		if (sizes & BIT_ULL(bit) &&
		    (last >> bit) - (address >> bit) == (last >> ilog2(size)) - (address >> ilog2(size)))
			return BIT_ULL(bit);
	return size;
}

static void take_keys(struct vroce_mr *mr, const struct hw_mr_result *res)
{
	mr->mrn = le32_to_cpu(res->mrn);
	mr->ib.lkey = le32_to_cpu(res->lkey);
	mr->ib.rkey = le32_to_cpu(res->rkey);
}

struct ib_mr *vroce_get_dma_mr(struct ib_pd *pd, int access)
{
	struct vroce_verbs *verbs = to_verbs(pd->device);
	struct hw_get_dma_mr req = {
		.pdn = cpu_to_le32(to_pd(pd)->pdn),
		.access_flags = cpu_to_le32(access & ACCESS),
	};
	struct vroce_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	struct hw_mr_result res;
	int err;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = vroce_call(verbs, HW_GET_DMA_MR, &req, &res);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	take_keys(mr, &res);
	return &mr->ib;
}

/* The addresses of a region's pages, as a table of pieces. */
struct page_list {
	struct scatterlist *sg;
	unsigned int pieces;
};

static void free_page_list(struct page_list *l)
{
	unsigned int i;

	for (i = 0; l->sg && i < l->pieces; i++)
		if (sg_page(&l->sg[i]))
			free_pages_exact(sg_virt(&l->sg[i]), PAGE_ALIGN(l->sg[i].length));
	kvfree(l->sg);
}

static int make_page_list(struct page_list *l, struct ib_umem *umem, unsigned long page_size, size_t pages)
{
	size_t bytes = pages * sizeof(__le64), left = bytes, at = 0;
	struct ib_block_iter iter;
	unsigned int i = 0;
	__le64 *piece = NULL;

	l->pieces = DIV_ROUND_UP(bytes, PIECE_MAX);
	l->sg = kvcalloc(l->pieces, sizeof(*l->sg), GFP_KERNEL);
	if (!l->sg)
		return -ENOMEM;
	sg_init_table(l->sg, l->pieces);
	for (i = 0; i < l->pieces; i++, left -= min_t(size_t, left, PIECE_MAX)) {
		size_t n = min_t(size_t, left, PIECE_MAX);
		void *p = alloc_pages_exact(PAGE_ALIGN(n), GFP_KERNEL);

		if (!p)
			return -ENOMEM;
		sg_set_buf(&l->sg[i], p, n);
	}
	rdma_umem_for_each_dma_block(umem, &iter, page_size) {
		if (at == pages)
			return -EINVAL;
		if (at % (PIECE_MAX / sizeof(__le64)) == 0)
			piece = sg_virt(&l->sg[at / (PIECE_MAX / sizeof(__le64))]);
		piece[at++ % (PIECE_MAX / sizeof(__le64))] = cpu_to_le64(rdma_block_iter_dma_address(&iter));
	}
	return at == pages ? 0 : -EINVAL;
}

static int register_pages(struct vroce_verbs *verbs, struct vroce_mr *mr, u32 pdn, u64 address, u64 length, int access)
{
	u64 sizes = le64_to_cpu(verbs->limits.page_size_cap);
	unsigned long page_size = ib_umem_find_best_pgsz(mr->umem, sizes, address);
	struct page_list list = {};
	struct hw_reg_user_mr req;
	struct hw_mr_result res;
	size_t pages;
	int err;

	if (!page_size)
		return -EINVAL;
	page_size = meant_page_size(sizes, page_size, address, length);
	pages = ib_umem_num_dma_blocks(mr->umem, page_size);
	if (!pages || pages > MAX_PAGES)
		return -EINVAL;
	err = make_page_list(&list, mr->umem, page_size, pages);
	if (!err) {
		req = (struct hw_reg_user_mr){
			.pdn = cpu_to_le32(pdn),
			.access_flags = cpu_to_le32(access & ACCESS),
			.virt_addr = cpu_to_le64(address),
			.length = cpu_to_le64(length),
			.npages = cpu_to_le32(pages),
		};
		err = vroce_command(verbs->card, HW_REG_USER_MR, &req, sizeof(req), list.sg, list.pieces,
				    &res, sizeof(res), false);
	}
	free_page_list(&list);
	if (!err)
		take_keys(mr, &res);
	return err;
}

struct ib_mr *vroce_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address, int access,
				struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(pd->device);
	struct vroce_mr *mr;
	int err;

	if (access & ~(ACCESS | IB_ACCESS_OPTIONAL))
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->umem = ib_umem_get(pd->device, start, length, access);
	if (IS_ERR(mr->umem)) {
		err = PTR_ERR(mr->umem);
		goto free;
	}
	err = register_pages(verbs, mr, to_pd(pd)->pdn, address, length, access);
	if (err)
		goto release;
	return &mr->ib;
release:
	if (READ_ONCE(verbs->card->broken))
		vroce_orphan_umem(verbs->card, mr->umem);
	else
		ib_umem_release(mr->umem);
free:
	kfree(mr);
	return ERR_PTR(err);
}

struct ib_mr *vroce_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_sg)
{
	struct vroce_verbs *verbs = to_verbs(pd->device);
	struct hw_alloc_mr req = {
		.pdn = cpu_to_le32(to_pd(pd)->pdn),
		.max_pages = cpu_to_le32(max_sg),
	};
	struct hw_mr_result res;
	struct vroce_mr *mr;
	int err;

	if (type != IB_MR_TYPE_MEM_REG || !(verbs->extensions & HW_CAP_MEM_MGT))
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_sg || max_sg > pd->device->attrs.max_fast_reg_page_list_len)
		return ERR_PTR(-EINVAL);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->pages = alloc_pages_exact(max_sg * sizeof(*mr->pages), GFP_KERNEL);
	mr->max_pages = max_sg;
	err = -ENOMEM;
	if (!mr->pages)
		goto free;
	err = vroce_call(verbs, HW_ALLOC_MR, &req, &res);
	if (err)
		goto free_pages;
	take_keys(mr, &res);
	return &mr->ib;
free_pages:
	free_pages_exact(mr->pages, max_sg * sizeof(*mr->pages));
free:
	kfree(mr);
	return ERR_PTR(err);
}

static int set_page(struct ib_mr *ib, u64 address)
{
	struct vroce_mr *mr = to_mr(ib);

	if (mr->npages == mr->max_pages)
		return -ENOMEM;
	mr->pages[mr->npages++] = cpu_to_le64(address);
	return 0;
}

int vroce_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int count, unsigned int *offset)
{
	int n;

	to_mr(ib)->npages = 0;
	n = ib_sg_to_pages(ib, sg, count, offset, set_page);
	/* Pages of more than 4 KiB in numbers that fit smaller ones, too, would be taken for those. */
	if (n > 0 && meant_page_size(~0ULL, ib->page_size, ib->iova, ib->length) != ib->page_size)
		return -EINVAL;
	return n;
}

/* Frees the memory of the lists of pages that the device reads. */
static void free_page_table(struct vroce_card *card, struct vroce_mr *mr)
{
	struct vroce_elements list = { .start = mr->pages, .length = mr->max_pages * sizeof(*mr->pages) };

	if (READ_ONCE(card->broken))
		vroce_orphan_elements(card, &list);
	else
		free_pages_exact(list.start, list.length);
}

int vroce_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct vroce_verbs *verbs = to_verbs(ib->device);
	struct vroce_mr *mr = to_mr(ib);
	int err = vroce_destroy(verbs, HW_DEREG_MR, mr->mrn);

	if (err)
		return err;
	if (mr->umem) {
		if (READ_ONCE(verbs->card->broken))
			vroce_orphan_umem(verbs->card, mr->umem);
		else
			ib_umem_release(mr->umem);
	}
	if (mr->pages)
		free_page_table(verbs->card, mr);
	kfree(mr);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0

#include <keys/user-type.h>
#include <linux/cred.h>
#include <linux/key.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>

/*
 * The administrator may read and change the keyring, but not its attributes.  @check is called
 * before a key is linked, with the keyring's semaphore held for writing, and not any more once
 * the keyring is revoked.
 */
__rust_helper struct key *
rust_helper_kx_keyring_alloc(const char *name,
			     int (*check)(struct key *keyring, const struct key_type *type,
					  const union key_payload *payload, struct key *other))
{
	struct key_restriction *restriction = kzalloc_obj(*restriction);
	struct key *keyring;

	if (!restriction)
		return ERR_PTR(-ENOMEM);
	restriction->check = check;
	keyring = keyring_alloc(name, GLOBAL_ROOT_UID, GLOBAL_ROOT_GID, current_cred(),
				(KEY_POS_ALL & ~KEY_POS_SETATTR) | (KEY_USR_ALL & ~KEY_USR_SETATTR),
				KEY_ALLOC_NOT_IN_QUOTA, restriction, NULL);
	/*
	 * The keyring frees the restriction.  Instantiating an empty keyring that is linked
	 * nowhere does not fail, so after an error there was none.
	 */
	if (IS_ERR(keyring))
		kfree(restriction);
	return keyring;
}

__rust_helper bool rust_helper_kx_keyring_is_empty(const struct key *keyring)
{
	return !READ_ONCE(keyring->keys.nr_leaves_on_tree);
}

/* Returns a key with a reference, or an error pointer. */
__rust_helper struct key *rust_helper_kx_keyring_search(struct key *keyring, const char *desc)
{
	key_ref_t found = keyring_search(make_key_ref(keyring, true), &key_type_logon, desc, false);

	return IS_ERR(found) ? ERR_CAST(found) : key_ref_to_ptr(found);
}

/*
 * Copies the payload of a key whose payload is a struct user_key_payload, if its length is
 * @len.  A key can be revoked, and its payload replaced, at any time.
 */
__rust_helper int rust_helper_kx_key_read(const struct key *key, u8 *buf, size_t len)
{
	const struct user_key_payload *payload;
	int err = 0;

	rcu_read_lock();
	payload = user_key_payload_rcu(key);
	if (!payload)
		err = -EKEYREVOKED;
	else if (payload->datalen != len)
		err = -EKEYREJECTED;
	else
		memcpy(buf, payload->data, len);
	rcu_read_unlock();
	return err;
}

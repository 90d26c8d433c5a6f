// SPDX-License-Identifier: GPL-2.0

#include <linux/cred.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>

/* Ids are those outside of all user namespaces. */

__rust_helper uid_t rust_helper_kx_current_uid(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

__rust_helper uid_t rust_helper_kx_current_euid(void)
{
	return from_kuid(&init_user_ns, current_euid());
}

__rust_helper bool rust_helper_kx_in_egroup(gid_t gid)
{
	kgid_t kgid = make_kgid(&init_user_ns, gid);

	return gid_valid(kgid) && in_egroup_p(kgid);
}

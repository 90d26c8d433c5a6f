// SPDX-License-Identifier: GPL-2.0

#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/mount.h>
#include <linux/path.h>

__rust_helper struct fs_struct *rust_helper___override_init_fs(void)
{
	return __override_init_fs();
}

__rust_helper void rust_helper___revert_init_fs(struct fs_struct *old_fs)
{
	__revert_init_fs(old_fs);
}

__rust_helper struct inode *rust_helper_d_backing_inode(const struct dentry *dentry)
{
	return d_backing_inode(dentry);
}

/* The negation of may_open_dev(), which is not exported. */
__rust_helper bool rust_helper_path_is_nodev(const struct path *path)
{
	return (path->mnt->mnt_flags & MNT_NODEV) || (path->mnt->mnt_sb->s_iflags & SB_I_NODEV);
}

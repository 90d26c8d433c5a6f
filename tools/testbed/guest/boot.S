/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The first sector of a virtual machine's first disk, and all of its system: by
 * the BIOS it writes pieces of 32 KiB to each of its two disks, one with each tick
 * of the clock, reads them back and compares.  It prints `w` for a piece that is
 * written, `r` for one that was right, `verified` when all are done, or `failed`;
 * then it restarts the machine.  The i-th word of a piece, little endian, is the
 * i-th number after (disk << 24 | first sector) of x = 1664525 x + 1013904223.
 * PIECES is given to the assembler.
 */
	.set FIRST, 64
	.set SECTORS, 64
	.set WORDS, SECTORS * 512 / 4
	.set END, FIRST + SECTORS * PIECES
	.set WANTED, 0x1000
	.set FOUND, 0x2000

	.code16
	.globl _start
_start:
	cli
	cld
	xorw %ax, %ax
	movw %ax, %ds
	movw %ax, %ss
	movw $0x7c00, %sp
	sti

next_disk:
	movl $FIRST, sector
	movw $WANTED, segment
write:
	hlt
	call make_wanted
	movb $0x43, %ah
	call transfer
	movb $'w', %al
	call put
	addl $SECTORS, sector
	cmpl $END, sector
	jb write

	movl $FIRST, sector
	movw $FOUND, segment
read:
	call make_wanted
	movb $0x42, %ah
	call transfer
	movw $FOUND, %ax
	movw %ax, %ds
	xorw %si, %si
	xorw %di, %di
	movw $WORDS, %cx
	repe cmpsl
	movw $0, %ax
	movw %ax, %ds
	jne failed
	movb $'r', %al
	call put
	addl $SECTORS, sector
	cmpl $END, sector
	jb read

	incb disk
	cmpb $0x82, disk
	jb next_disk
	movw $verified_text, %si
	jmp say
failed:
	movw $failed_text, %si
say:
	lodsb
	testb %al, %al
	jz restart
	call put
	jmp say
restart:
	movb $0xfe, %al
	outb %al, $0x64
stop:
	hlt
	jmp stop

/* Leaves WANTED in %es. */
make_wanted:
	movw $WANTED, %ax
	movw %ax, %es
	xorw %di, %di
	movw $WORDS, %cx
	movzbl disk, %eax
	shll $24, %eax
	orl sector, %eax
1:	imull $1664525, %eax, %eax
	addl $1013904223, %eax
	stosl
	loop 1b
	ret

/* The extended call of the BIOS in %ah, for the piece. */
transfer:
	xorb %al, %al
	movb disk, %dl
	movw $packet, %si
	int $0x13
	jc failed
	ret

/* %al, by the serial line. */
put:
	movb %al, %ah
	movw $0x3fd, %dx
1:	inb %dx, %al
	testb $0x20, %al
	jz 1b
	movb %ah, %al
	movw $0x3f8, %dx
	outb %al, %dx
	ret

disk:	.byte 0x80
packet:	.byte 16, 0
	.word SECTORS
	.word 0
segment:
	.word 0
sector:	.long 0, 0
verified_text:
	.asciz "verified\n"
failed_text:
	.asciz "failed\n"
	.org 510
	.word 0xaa55

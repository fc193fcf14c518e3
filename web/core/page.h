/* SPDX-License-Identifier: Apache-2.0 */
/* Between C and the page. */
#ifndef WEB_PAGE_H
#define WEB_PAGE_H

/* Declares and defines a function that engine.js can call. */
#define WEB_EXPORT(name) __attribute__((export_name(#name), visibility("default")))

/* A function that webgpu.js provides. */
#define WEB_IMPORT(name) __attribute__((import_module("webgpu"), import_name(#name)))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of results: nothing in it but .npy files that epigrad writes. */
#ifndef CLI_FOLDER_H
#define CLI_FOLDER_H

/* Refuses a folder that holds anything else, which replacing it would destroy. */
int folder_check(const char *path);

/* Puts the folder `made` in the place of `path`, and removes the one that was there. */
int folder_replace(const char *made, const char *path);

/* Removes the results in the folder, and the folder where it is then empty. A signal's handler may call it.
 */
void folder_remove(const char *path);

#endif

/**
 * Loaded into every test process before all else. tap notes which files a process, its threads and its children load,
 * for coverage, which is off: that would cost a third of the time that a small test file takes.
 */
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'

/** Of the files that a process loads, those that tap does not note: all. */
process.env._TAPJS_PROCESSINFO_EXCLUDE_ = '/^/'

/** What V8 makes of a module, and the JavaScript in a TypeScript file, are made once and not by each process. */
process.env.NODE_COMPILE_CACHE ??= join(import.meta.dirname, '../../node_modules/.cache/node')
enableCompileCache(process.env.NODE_COMPILE_CACHE)

/** Python, which renders prompts, lives for seconds in a test: what would make it faster costs more than it brings. */
setFlagsFromString('--liftoff-only')

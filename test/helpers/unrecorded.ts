/**
 * Loaded into every test process before any other module. For coverage, which is disabled, tap records which files a process,
 * its threads and its children load; that would cost a third of the time of a small test file.
 */
import { enableCompileCache } from 'node:module'
import { resolve } from 'node:path'
import { setFlagsFromString } from 'node:v8'

/** The files that tap does not record: all. */
process.env._TAPJS_PROCESSINFO_EXCLUDE_ = '/^/'

/**
 * Compiled modules and stripped TypeScript are cached for all processes. `package.json` names the same folder, so that
 * this file is cached too: stripping its types would cost a quarter of the time of a small test file. The path here is
 * absolute for children that run in other folders.
 */
process.env.NODE_COMPILE_CACHE = resolve(process.env.NODE_COMPILE_CACHE ?? 'node_modules/.cache/node')
enableCompileCache(process.env.NODE_COMPILE_CACHE)

/** Python, which renders prompts, lives for seconds in a test: optimizing its WebAssembly costs more than it saves. */
setFlagsFromString('--liftoff-only')

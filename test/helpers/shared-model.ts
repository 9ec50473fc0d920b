/**
 * Opens models of token mode for the proxies of a test file. A proxy reuses the model of a stopped proxy of the same
 * file, because starting a model costs a second of CPU time.
 */
import type { Test } from 'tap'
import {
  openTokenModel,
  type TokenModel,
  type TokenModelOptions,
} from '../../src/proxy/tokens/model/token-model.ts'

interface SharedModel {
  model: Promise<TokenModel>
  users: number
  /** Closes the model when its last user has released it. */
  release(): Promise<void>
}

/** A test, with the test that contains it. */
type Host = Pick<Test, 'teardown'> & { parent?: Host | undefined }

const models = new Map<string, SharedModel>()

/**
 * Returns a replacement of `openTokenModel`. The model closes when the file of `t` ends, or when another model with
 * other options is opened.
 */
export function openSharedModel(t: Host): (options: TokenModelOptions) => Promise<TokenModel> {
  return (options) => {
    const key = JSON.stringify(options)
    const shared = models.get(key) ?? openNew(key, options, getFile(t))
    shared.users += 1
    return shared.model
  }
}

function getFile(host: Host): Host {
  return host.parent === undefined ? host : getFile(host.parent)
}

function openNew(key: string, options: TokenModelOptions, file: Host): SharedModel {
  // Each has Python in a separate thread.
  for (const other of models.values()) void other.release()
  let isReleased = false
  let close: () => Promise<void> = async () => {}
  const closeUnused = async () => {
    if (isReleased && shared.users === 0) await close()
  }
  const shared: SharedModel = {
    model: openTokenModel(options),
    users: 0,
    release: async () => {
      models.delete(key)
      isReleased = true
      await closeUnused()
    },
  }
  models.set(key, shared)
  shared.model.then(
    (model) => {
      close = model.close.bind(model)
      model.close = async () => {
        shared.users -= 1
        await closeUnused()
      }
    },
    () => models.delete(key),
  )
  file.teardown(() => shared.release())
  return shared
}

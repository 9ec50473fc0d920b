/**
 * Opens models of token mode for the proxies of a test file. A proxy that is started just after another one with the same
 * model has stopped gets that model, because each costs a second of CPU time to start.
 */
import {
  openTokenModel,
  type TokenModel,
  type TokenModelOptions,
} from '../../src/proxy/tokens/model/token-model.ts'

/** How long a model without a user waits for the next one. */
const IDLE_MS = 200

interface Shared {
  model: Promise<TokenModel>
  users: number
  cancelClose: () => void
}

const models = new Map<string, Shared>()

/** As `openTokenModel`. */
export async function openSharedModel(options: TokenModelOptions): Promise<TokenModel> {
  const key = JSON.stringify(options)
  const shared = models.get(key) ?? openNew(key, options)
  shared.users += 1
  shared.cancelClose()
  return shared.model
}

function openNew(key: string, options: TokenModelOptions): Shared {
  const shared: Shared = { model: openTokenModel(options), users: 0, cancelClose: () => {} }
  models.set(key, shared)
  shared.model.then(
    (model) => {
      const close = model.close.bind(model)
      model.close = async () => {
        shared.users -= 1
        if (shared.users > 0) return
        const timer = setTimeout(() => {
          models.delete(key)
          void close()
        }, IDLE_MS)
        shared.cancelClose = () => clearTimeout(timer)
      }
    },
    () => models.delete(key),
  )
  return shared
}

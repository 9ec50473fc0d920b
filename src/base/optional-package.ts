/** Packages that only some users need: the executable and a checkout have them, and an npm package leaves them to its user. */
import { ProxyError } from './errors.ts'

/**
 * @param name of the package
 * @param purpose what needs it, as a message begins with it
 * @param load imports it; with the name written out, so that the executable's build finds it
 * @throws ProxyError `start_failed` if it is not installed
 */
export async function importOptionalPackage<T>(
  name: string,
  purpose: string,
  load: () => Promise<T>,
): Promise<T> {
  try {
    return await load()
  } catch (thrown) {
    const { code, message } = thrown as NodeJS.ErrnoException
    const isMissing = code === 'ERR_MODULE_NOT_FOUND' && message.includes(`'${name}'`)
    if (!isMissing) throw thrown
    throw new ProxyError('start_failed', `${purpose} needs the package ${name}: npm install ${name}`)
  }
}

//! Pushes of the configuration: `[[push]]`, with secrets that are stored elsewhere.

use std::collections::BTreeSet;
use std::path::Path;

use tidings_broker::hooks::SECRET_BYTES_MIN;
use tidings_connectors::delivery::Signer;
use tidings_connectors::push::{Format, Push};
use tidings_protocol::{CanonicalUrl, DEFAULT_TOPIC, PAGE_READY_TOPIC, TopicName};

use crate::flags::push_table::{PushTable, of_push};
use crate::services::callbacks::{read_signing_secrets, signer_of};
use crate::services::hooks::all_valid;
use crate::services::public_url::PublicUrl;
use crate::terminal::failure::Failure;

/// The tables `[[push]]` of the configuration file.
#[derive(Debug, Clone, Default)]
pub(crate) struct PushTables(pub(crate) Vec<PushTable>);

impl PushTables {
    pub(crate) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|table| table.secret_file.as_deref())
    }

    /// All pushes with their secrets, which are read now. `published_topic` is the topic of this
    /// broker on which a request to a URL publishes.
    pub(crate) fn pushes(
        &self,
        public: Option<&PublicUrl>,
        published_topic: impl Fn(&CanonicalUrl<'_>) -> Option<TopicName>,
    ) -> Result<Vec<(Push, Option<Signer>)>, Failure> {
        let published: Vec<_> =
            self.0.iter().map(|table| published_topic(&table.push.url)).collect();
        let ways = self.0.iter().zip(&published);
        let ways =
            ways.filter_map(|(table, to)| Some((table.push.topic.as_str(), to.as_ref()?.as_str())));
        // URLs on the default topic are crawled, and their outcomes published.
        let ways: Vec<_> = ways.chain([(DEFAULT_TOPIC, PAGE_READY_TOPIC)]).collect();
        let mut names = BTreeSet::new();
        let pushes = self.0.iter().zip(&published).map(|(table, published)| {
            let PushTable { name, push, secret_file } = table;
            if !names.insert(name) {
                return Err(format!("`name`: two pushes have the name {name:?}"));
            }
            let wrong = |error: String| of_push(name, &error);
            let topic = &push.topic;
            if let Some(published) = published
                && is_reachable(topic.as_str(), published.as_str(), &ways)
            {
                let text = if published == topic {
                    format!("`url` publishes on {topic}, which would be pushed again")
                } else {
                    format!("`url` publishes on {published}, which leads to {topic} again")
                };
                return Err(wrong(format!("{text}, for ever; use another topic")));
            }
            let mut push = push.clone();
            if let Format::CloudEvents { source } = &mut push.format {
                *source = public.map(ToString::to_string).ok_or_else(|| {
                    let text = "`format` cloudevents needs --public-url, which becomes the source";
                    wrong(text.to_owned())
                })?;
            }
            let signer = secret_file.as_deref().map(read_signer).transpose();
            let signer = signer.map_err(|error| wrong(format!("`secret-file`: {error}")))?;
            Ok((push, signer))
        });
        all_valid("push", pushes)
    }
}

/// Whether events of a topic become events of another one, by ways from topic to topic.
fn is_reachable(topic: &str, from: &str, ways: &[(&str, &str)]) -> bool {
    let mut reached = vec![from];
    let mut next = 0;
    while let Some(&at) = reached.get(next) {
        let onward = ways.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to);
        let new: Vec<_> = onward.filter(|to| !reached.contains(to)).collect();
        reached.extend(new);
        next += 1;
    }
    reached.contains(&topic)
}

fn read_signer(file: &Path) -> Result<Signer, String> {
    let secrets = read_signing_secrets(file)?;
    if let Some(secret) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
        return Err(format!(
            "a secret of {} bytes can be guessed: use at least {SECRET_BYTES_MIN} bytes, for \
             example the output of `openssl rand -base64 32`",
            secret.len()
        ));
    }
    Ok(signer_of(secrets))
}

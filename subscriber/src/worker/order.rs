//! What a task says about itself: its payload, read once.

use tidings_protocol::Payload;

use crate::pass::{PassKey, ScopedPass};

/// The URL of a task, and those of its attributes that every task is looked at for.
#[derive(Debug)]
pub(super) struct Order {
    /// Everything that it says.
    text: String,
    /// Bytes of the URL at its beginning.
    url_len: usize,
    /// The job whose page it is.
    pub(super) job: Option<Box<str>>,
    /// The pass of that job, from 1.
    pub(super) pass: Option<u64>,
    /// The same for what is known in this process, if the job has a number, with how far the job's scope had grown when
    /// the task was handed out.
    pub(super) scoped_pass: Option<ScopedPass>,
    /// Links from a seed of the job.
    pub(super) depth: Option<u64>,
    /// What is to be requested instead of the page.
    pub(super) again: Option<Box<str>>,
    /// There is no attempt after this one.
    pub(super) is_last: bool,
}

impl Order {
    /// Reads the payload of a task that was released in this run of its group. Of several attributes with one key the
    /// first one counts; one that cannot be read is as good as none.
    pub(super) fn read(text: String, run: u64) -> Self {
        let payload = Payload::parse(&text);
        let url_len = payload.target().unwrap_or(&text).len();
        let (mut job, mut pass, mut number, mut scope) = (None, None, None, None);
        let (mut depth, mut again, mut last) = (None, None, None);
        for (key, value) in payload.attributes() {
            let place = match key {
                "job" => &mut job,
                "pass" => &mut pass,
                "number" => &mut number,
                "scope" => &mut scope,
                "depth" => &mut depth,
                "again" => &mut again,
                "last" => &mut last,
                _ => continue,
            };
            place.get_or_insert(value);
        }
        let count = |value: Option<&str>| value.and_then(|value| value.parse().ok());
        let pass = count(pass);
        // Names are given again, numbers are not.
        let key = number.zip(pass).map(|(number, pass)| PassKey::new(run, number, pass));
        let scope = count(scope).unwrap_or(0);
        Self {
            url_len,
            job: job.map(Box::from),
            pass,
            scoped_pass: key.map(|pass| ScopedPass { pass, scope }),
            depth: count(depth),
            again: again.map(Box::from),
            is_last: last == Some("yes"),
            text,
        }
    }

    /// The URL of the page, as the broker wrote it; all of a payload that has none.
    pub(super) fn url(&self) -> &str {
        &self.text[..self.url_len]
    }

    /// All its attributes, for what few tasks have.
    pub(super) fn payload(&self) -> Payload<'_> {
        Payload::parse(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Order {
        Order::read(text.to_owned(), 7)
    }

    #[test]
    fn what_a_task_says_is_read_once_and_the_first_of_two_counts() {
        let order = read(
            "http://a.org/x job=docs number=3 pass=2 depth=4 scope=5 last=yes again=http://a.org/robots.txt pass=9",
        );
        assert_eq!(order.url(), "http://a.org/x");
        assert_eq!(
            (order.job.as_deref(), order.pass, order.depth),
            (Some("docs"), Some(2), Some(4))
        );
        let pass = PassKey::new(7, "3", 2);
        assert_eq!(order.scoped_pass, Some(ScopedPass { pass, scope: 5 }));
        assert_eq!(order.again.as_deref(), Some("http://a.org/robots.txt"));
        assert!(order.is_last);
    }

    #[test]
    fn what_cannot_be_read_is_as_good_as_none() {
        let order = read("http://a.org/ job=docs pass=2 depth=deep last=no");
        assert_eq!((order.scoped_pass, order.depth, order.is_last), (None, None, false));
        let order = read("no URL, job=docs");
        assert_eq!((order.url(), order.job.as_deref()), ("no URL, job=docs", None));
    }
}

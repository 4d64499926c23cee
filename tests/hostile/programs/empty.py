# why: an empty answer

